"""Stores: from a slot for each computed block until its page is in the store."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.lookups import LookedUp
from kvstore_vllm.offload.publication import Publication, PublishedRun
from kvstore_vllm.offload.reserve import Reserve, Spare
from kvstore_vllm.scheduler.store_threads import Answers

# Generated pages are published together once there are so many, or as their request ends.
PAGES_TOGETHER: Final = 8


class Written(NamedTuple):
    """A page in its slot, with vLLM's key for it."""

    key: bytes
    page: int
    spare: Spare


@dataclass(eq=False, slots=True)
class Stored(LookedUp):
    """A request with its lookups, and its pages on the way into the store.

    ``copying`` are those that ranks copy into slots, by vLLM's key.
    """

    copying: dict[bytes, Written] = field(default_factory=dict)
    written: dict[int, Written] = field(default_factory=dict)
    may_store: bool = True
    deferred: bool = False
    publishing: bool = False
    finished: bool = False

    @property
    def idle(self) -> bool:
        """True if the request ended, and nothing of it is left to do."""
        open_ = self.copying or self.written or self.publishing or self.loading
        return self.finished and not open_


# Returns the reserve of a key's namespace.
ReserveOf = Callable[[RequestKey], Reserve]


class StorePath:
    """Gives vLLM slots for computed blocks, and publishes the pages. One thread uses it.

    ``answers`` has one thread, so that pages are published in the order of their copies: a
    request may need another one's pages before its own. ``published`` is called with the keys of
    pages that are in the store.
    """

    def __init__(
        self,
        page_tokens: int,
        publication: Publication,
        answers: Answers,
        counts: "Counter[str]",
        *,
        usable: Callable[[], bool],
        reserve_of: ReserveOf,
        published: Callable[[list[bytes]], None],
        ended: Callable[[Stored], None],
    ) -> None:
        self._page_tokens = page_tokens
        self._publication = publication
        self._answers = answers
        self._counts = counts
        self._usable = usable
        self._reserve_of = reserve_of
        self._published = published
        self._ended = ended
        self._keys: set[bytes] = set()

    def prepare(self, tracked: Stored, wanted: Sequence[tuple[bytes, int]]) -> list[Written] | None:
        """Returns a slot for each page to store, of vLLM's keys and their pages.

        Pages that the store has, or that another request copies now, are left out: vLLM does not
        ask for them again. So are those for which no slot is free, and then all later ones of
        the request, which could not be published without them. Returns None if slots are under
        way, at most once a request: vLLM asks again in the next step, and logs it.
        """
        if not tracked.may_store or not self._usable():
            tracked.may_store = False
            return []
        missing = [
            (key, page)
            for key, page in wanted
            if page >= tracked.stored_pages and key not in self._keys
        ]
        if not missing:
            return []
        reserve = self._reserve_of(tracked.key)
        spares = reserve.take(len(missing))
        if len(spares) < len(missing):
            if reserve.is_coming and not tracked.deferred:
                tracked.deferred = True
                reserve.give_back(spares)
                return None
            tracked.may_store = False
        missing.sort(key=lambda each: each[1])
        pages = [
            Written(key, page, spare) for (key, page), spare in zip(missing, spares, strict=False)
        ]
        for each in pages:
            tracked.copying[each.key] = each
            self._keys.add(each.key)
        return pages

    def copied(self, tracked: Stored, keys: Iterable[bytes], *, failed: bool) -> None:
        """Notes that all ranks ended copies of pages, and publishes them unless one failed."""
        pages = [tracked.copying.pop(key) for key in keys if key in tracked.copying]
        if failed:
            self._counts["saves_failed"] += 1
            tracked.may_store = False
            self._give_back(tracked, pages)
        else:
            for each in pages:
                replaced = tracked.written.get(each.page)
                if replaced is not None:
                    self._give_back(tracked, [replaced])
                tracked.written[each.page] = each
        self._advance(tracked)

    def finish(self, tracked: Stored) -> None:
        """Ends a request: publishes what is left of it."""
        tracked.finished = True
        self._advance(tracked)

    def drop(self, tracked: Stored) -> list[Written]:
        """Ends all stores of a request. Returns the pages that ranks may still be writing."""
        tracked.may_store = False
        self._give_back(tracked, tracked.written.values())
        tracked.written.clear()
        copying = list(tracked.copying.values())
        tracked.copying.clear()
        self._keys.difference_update(each.key for each in copying)
        return copying

    def _advance(self, tracked: Stored) -> None:
        """Publishes the first run of written pages, if it is long enough or the last."""
        if tracked.publishing:
            return
        run = _first_run(tracked.written)
        prompt_pages = tracked.request.num_prompt_tokens // self._page_tokens
        waits = tracked.copying or not tracked.finished
        if run and waits and run[0].page >= prompt_pages and len(run) < PAGES_TOGETHER:
            return
        if not run:
            self._ended(tracked)
            return
        for each in run:
            del tracked.written[each.page]
        tracked.publishing = True
        end = run[-1].page + 1
        ids = tracked.request.all_token_ids[: end * self._page_tokens]
        self._answers.ask(
            partial(self._publication.publish, tracked.key, ids, run[0].page, run),
            partial(self._answered, tracked, run),
        )

    def _answered(self, tracked: Stored, run: list[Written], found: PublishedRun | None) -> None:
        tracked.publishing = False
        self._keys.difference_update(each.key for each in run)
        reserve = self._reserve_of(tracked.key)
        if found is None:
            found = PublishedRun(0, frozenset(each.page for each in run))
        unused = [each.spare for each in run if each.page not in found.used_pages]
        reserve.used(each.spare for each in run if each.page in found.used_pages)
        reserve.give_back(unused)
        if found.end_page > run[-1].page:
            tracked.stored_pages = max(tracked.stored_pages, found.end_page)
            self._counts["stored_tokens"] += found.own_page_count * self._page_tokens
            self._published([each.key for each in run])
        else:
            self._counts["inserts_failed"] += 1
            tracked.may_store = False
        self._advance(tracked)

    def _give_back(self, tracked: Stored, pages: Iterable[Written]) -> None:
        pages = list(pages)
        self._keys.difference_update(each.key for each in pages)
        self._reserve_of(tracked.key).give_back(each.spare for each in pages)


def _first_run(written: dict[int, Written]) -> list[Written]:
    """Returns the first consecutive pages."""
    run: list[Written] = []
    for page in sorted(written):
        if run and page != run[-1].page + 1:
            break
        run.append(written[page])
    return run
