"""Prefills in flight: what open reservations are about to compute, found by their progress."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from operator import attrgetter

from kvstore.core.pool.tenant import Tenant
from kvstore.core.values.tokens import common_pages


class Prefill:
    """An announced run of whole pages: ``tokens``, from the sequence's beginning, through ``end``.

    ``at`` is the next page to be inserted. ``advanced_at`` is the time at which the page before
    it was inserted, or the reservation was made. ``pin_id`` is that of the match that it
    continues. ``end`` and ``at`` count pages from the sequence's beginning. ``key`` is
    that of ``Prefills.by_page`` under which it is found.
    """

    __slots__ = ("advanced_at", "at", "end", "key", "number", "pin_id", "tokens")

    def __init__(self, tokens: bytes, at: int, end: int, pin_id: int, now: float) -> None:
        self.tokens = tokens
        self.at = at
        self.end = end
        self.pin_id = pin_id
        self.advanced_at = now
        self.key = (at, b"")
        # Counts the announcements and advances in a namespace.
        self.number = 0


# How many prefills on either side of a sequence are checked for one that advanced lately.
# The first one has, unless workers hang.
NEIGHBOURS = 16
TOKENS = attrgetter("tokens")


class Prefills:
    """Announced reservations of one namespace, by the page that they insert next.

    ``by_page`` has them by the number and the tokens of that page. Those of one page are in the
    order of their sequences' bytes, so the one that agrees longest with a sequence is next to
    its place. If no prefill continues a match, that costs one look into a dictionary. Not
    thread-safe.
    """

    def __init__(self, owner: Tenant, width: int) -> None:
        """``width`` is the size of a page's tokens in bytes. ``owner`` bounds announced tokens."""
        self.by_page: dict[tuple[int, bytes], list[Prefill]] = {}
        self._owner = owner
        self._width = width
        self._last_number = 0

    def __iter__(self) -> Iterator[Prefill]:
        for each in self.by_page.values():
            yield from each

    def announce(
        self, tokens: bytes, start: int, end: int, pin_id: int, now: float
    ) -> Prefill | None:
        """Announces that pages ``start`` through ``end`` of ``tokens`` are to be computed.

        Keeps ``tokens`` as they are. Returns None if they have no whole page in that range, or if
        the tenant announced too much.
        """
        end = min(end, len(tokens) // self._width)
        if end <= start:
            return None
        # It announces no whole page that it has no slot for.
        if len(tokens) >= (end + 1) * self._width:
            tokens = tokens[: end * self._width]
        if not self._owner.has_room_to_announce(len(tokens)):
            return None
        self._owner.announced_bytes += len(tokens)
        prefill = Prefill(tokens, start, end, pin_id, now)
        self._stand(prefill)
        return prefill

    def advance(self, prefill: Prefill, at: int, now: float) -> None:
        """Records that page ``at`` of a prefill is the next to be inserted."""
        self._leave(prefill)
        prefill.at, prefill.advanced_at = at, now
        self._stand(prefill)

    def drop(self, prefill: Prefill) -> None:
        """Removes a prefill, which MUST be here."""
        self._leave(prefill)
        self._owner.announced_bytes -= len(prefill.tokens)

    def may_go_on(self, depth: int, page: bytes) -> bool:
        """Returns True if any prefill inserts page ``depth``, with the tokens ``page``, next."""
        return (depth, page) in self.by_page

    def find(
        self, tokens: bytes, depth: int, end: int, *, since: float
    ) -> tuple[Prefill, int] | None:
        """Returns the prefill that continues page ``depth`` of ``tokens``, and how far it agrees.

        Picks the one that agrees longest, up to page ``end``, with at least one page. Skips those
        that did not advance ``since`` a time. Costs a few memcmps.
        """
        there = self.by_page.get(self._page(tokens, depth))
        if there is None:
            return None
        place = bisect_right(there, tokens, key=TOKENS)
        before = reversed(there[max(place - NEIGHBOURS, 0) : place])
        best: tuple[int, int, Prefill] | None = None
        for side in (before, islice(there, place, place + NEIGHBOURS)):
            prefill = next((each for each in side if each.advanced_at >= since), None)
            if prefill is not None:
                agreed = self._agreed(prefill, tokens, depth, end)
                if agreed > depth and (best is None or (agreed, prefill.number) > best[:2]):
                    best = agreed, prefill.number, prefill
        return None if best is None else (best[2], best[0])

    def _agreed(self, prefill: Prefill, tokens: bytes, depth: int, end: int) -> int:
        """Returns the page to which a prefill agrees, at most ``end``; zero if below ``depth``."""
        width = self._width
        end = min(end, prefill.end)
        known, start = memoryview(prefill.tokens), depth * width
        if not tokens.startswith(known[:start]):
            return 0
        if tokens.startswith(known[start : end * width], start):
            return end
        return depth + common_pages(prefill.tokens, start, tokens, start, end * width, width)

    def _stand(self, prefill: Prefill) -> None:
        self._last_number += 1
        prefill.number = self._last_number
        prefill.key = self._page(prefill.tokens, prefill.at)
        there = self.by_page.setdefault(prefill.key, [])
        there.insert(bisect_right(there, prefill.tokens, key=TOKENS), prefill)

    def _leave(self, prefill: Prefill) -> None:
        there = self.by_page[prefill.key]
        del there[there.index(prefill, bisect_left(there, prefill.tokens, key=TOKENS))]
        if not there:
            del self.by_page[prefill.key]

    def _page(self, tokens: bytes, depth: int) -> tuple[int, bytes]:
        return depth, tokens[depth * self._width : (depth + 1) * self._width]
