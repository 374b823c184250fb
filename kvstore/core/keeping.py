"""From the tiers that are memory to tier 3: which pages, and what is known to be there.

Decided under the owner's mutex, written by others outside it, finished under it. Which of
the pages are worth a write is theirs to say.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items

from kvstore.core.index.path_hashes import kept_end, remember
from kvstore.core.keep import Keep, prepare
from kvstore.core.namespace import namespace_of
from kvstore.core.pages import release
from kvstore.core.third_tier import RemovedPrefix
from kvstore.core.tiering import Tiering

# More bytes than there are.
UNBOUNDED = 1 << 64


class Keeping(Tiering):
    """Names the pages that tier 3 may want, and those that it must not have any more."""

    def keeps_wanted(self) -> bool:
        """Return whether ``plan_keeps`` may have something to do."""
        return self.third is not None and bool(self.third.touches)

    def plan_keeps(self, most: int, room: int = UNBOUNDED) -> list[Keep]:
        """Return what was touched since, ``most`` pages at most; whoever calls has to finish it.

        Whole pages alone, in the order in which they were touched, each as often as it was,
        until it is known to be kept. They come to ``room`` bytes at most, but for one page
        where nothing else is on its way.
        """
        keeps: list[Keep] = []
        third = self.third
        while third is not None and third.touches and most > 0:
            page_bytes = namespace_of(third.touches[0].node).layout.page_bytes
            fit = min(most, max(room // page_bytes, 0 if third.keeps else 1))
            if fit < 1:
                break
            touch = third.touches.popleft()
            keep = prepare(touch, fit)
            if keep is None:
                continue
            most -= len(keep.pages)
            room -= len(keep.pages) * page_bytes
            keeps.append(keep)
            third.keeps[keep] = None
            if len(keep.pages) == fit:
                third.touches.appendleft(touch._replace(start=keep.held_end))
        return keeps

    def keeps_stale(self, keep: Keep) -> bool:
        """Return whether a page of a keep's path left the index since: none of it may be written.

        To be asked right before the pages are given to tier 3, under the same mutex.
        """
        return keep.is_stale

    def finish_keeps(self, keeps: Iterable[Keep], kept_ends: Items[int]) -> None:
        """Let go of keeps, and note through which page of each they are in tier 3 now.

        An end counts pages from the sequence's beginning; at most a keep's ``start`` says that
        none of it is. Raises nothing.
        """
        for keep, end in zip(keeps, kept_ends, strict=True):
            assert self.third is not None  # or none was planned
            del self.third.keeps[keep]
            if not keep.is_stale:
                at = keep.position_at(keep.held_end)
                # Of a path whose beginning is not known to be kept nothing else is either.
                follows = kept_end(at) >= keep.start and keep.losses == keep.namespace.losses
                remember(at, keep.digests, end if follows else 0)
            release(keep.anchors)

    def forget_kept(self, namespace_digests: Iterable[bytes]) -> None:
        """Note that tier 3 lost pages of namespaces: nothing of them is known to be there.

        Those that are not open are passed over.
        """
        for digest in namespace_digests:
            namespace = None if self.third is None else self.third.namespaces.get(digest)
            if namespace is not None:
                namespace.losses += 1

    def take_removed(self) -> list[RemovedPrefix]:
        """Return what tier 3 must not have any more; whoever calls has to ``finish_removed``."""
        if self.third is None:
            return []
        removed, self.third.removed = self.third.removed, []
        return removed

    def finish_removed(self, removed: Iterable[RemovedPrefix]) -> None:
        """Note that tier 3 answers with none of these any more: loads may begin again."""
        for each in removed:
            assert self.third is not None  # or nothing was removed of it
            self.third.told(each.namespace_digest)
