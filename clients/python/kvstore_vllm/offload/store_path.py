"""Stores: from a slot for each computed block until its page is in the store."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol

from kvstore_client import Match, ReuseHint
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.matched_pages import GroupPage
from kvstore_vllm.offload.publication import PagesToPublish, PublishedPages, Written
from kvstore_vllm.offload.reserve import Reserve
from kvstore_vllm.scheduler.store_news import StoreNews
from kvstore_vllm.scheduler.store_threads import Answers
from kvstore_vllm.scheduler.tracked_requests import EngineRequest, RequestLookup

# Generated pages are published together once there are so many, or as their request ends.
PAGES_TOGETHER: Final = 8
# Seconds in which vLLM asks again for the slots of a request's next pages.
LONGEST_DEFERRAL: Final = 0.25


class Publisher(Protocol):
    """Publishes written pages, on a thread that may wait."""

    def publish(self, wanted: Sequence[PagesToPublish]) -> list[PublishedPages]:
        """Publishes pages of requests of one namespace; returns the result of each."""


@dataclass(eq=False, slots=True)
class Stored:
    """A request with its lookup, and its pages on the way into the store.

    ``loading`` are the matches that ranks copy from, and ``copying`` the pages that ranks copy
    into slots, by vLLM's key.
    """

    request: EngineRequest
    key: RequestKey
    hint: ReuseHint | None = None
    may_load: bool = True
    lookup: RequestLookup | None = None
    waited: bool = False
    # The number of pages from the beginning that the store is known to have had.
    stored_pages: int = 0
    loading: list[Match] = field(default_factory=list)
    copying: dict[bytes, Written] = field(default_factory=dict)
    written: dict[GroupPage, Written] = field(default_factory=dict)
    may_store: bool = True
    # False once the blocks that ranks copy may be wrong: their pages are not published.
    trusted: bool = True
    deferred_at: float | None = None
    publishing: bool = False
    # True once its stores were dropped, so that nobody looks where pages under way end up.
    dropped: bool = False
    finished: bool = False

    @property
    def idle(self) -> bool:
        """True if the request ended, and nothing of it is left to do."""
        return self.finished and not (
            self.copying or self.written or self.publishing or self.loading
        )


# Returns the reserve of a key's namespace.
ReserveOf = Callable[[RequestKey], Reserve]


class StorePath:
    """Gives vLLM slots for computed blocks, and publishes the pages. One thread uses it.

    ``answers`` has one thread, so that pages are published in the order of their copies: a
    request may need another one's pages before its own. :meth:`send` publishes those of all
    requests together. ``news`` hears which pages of requests the store has, and ``ended`` is
    called with a request that has nothing left to publish.
    """

    def __init__(
        self,
        page_tokens: int,
        publisher: Publisher,
        answers: Answers,
        counts: "Counter[str]",
        *,
        usable: Callable[[], bool],
        reserve_of: ReserveOf,
        news: StoreNews,
        ended: Callable[[Stored], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._page_tokens = page_tokens
        self._publisher = publisher
        self._answers = answers
        self._counts = counts
        self._usable = usable
        self._reserve_of = reserve_of
        self._news = news
        self._ended = ended
        # Keys under way, of all requests.
        self._keys: set[bytes] = set()
        # Pages to publish with the next call.
        self._waiting: list[tuple[Stored, PagesToPublish]] = []

    @property
    def has_waiting(self) -> bool:
        """True if pages wait for :meth:`send`."""
        return bool(self._waiting)

    def send(self) -> None:
        """Publishes what the requests of a step have written, in one call for each namespace."""
        waiting, self._waiting = self._waiting, []
        parts: dict[object, list[tuple[Stored, PagesToPublish]]] = {}
        for each in waiting:
            parts.setdefault(each[1].key.namespace, []).append(each)
        for part in parts.values():
            wanted = [pages for _, pages in part]
            self._answers.ask(
                partial(self._publisher.publish, wanted), partial(self._all_answered, part)
            )

    def close(self) -> None:
        """Publishes the rest, and waits for it. Gives up what is written later."""
        self.send()
        self._answers.close()
        while self._waiting:
            self.send()
            self._answers.close()

    def prepare(
        self, tracked: Stored, wanted: Iterable[tuple[bytes, GroupPage]]
    ) -> list[Written] | None:
        """Returns a slot for each page to store, of vLLM's keys and their pages.

        Pages that the store has, or that another request copies now, are left out: vLLM does not
        ask for them again. So are those for which no slot is free, and then all later ones of
        the request, which could not be published without them. Returns None if slots are under
        way: vLLM then asks again in the next step, and logs a warning. It does so for the same
        pages only for ``LONGEST_DEFERRAL``.
        """
        if not tracked.may_store or not self._usable():
            tracked.may_store = False
            return []
        missing = [
            (key, page)
            for key, page in wanted
            if key not in self._keys and (page.group or page.number >= tracked.stored_pages)
        ]
        if not missing:
            return []
        reserve = self._reserve_of(tracked.key)
        spares = reserve.take(len(missing))
        if len(spares) < len(missing):
            if reserve.is_coming and self._defers(tracked):
                reserve.give_back(spares)
                return None
            tracked.may_store = False
            # The path first, without which nothing else can be published.
            missing.sort(key=lambda each: (each[1].number, each[1].group))
        tracked.deferred_at = None
        pages = [
            Written(key, page, spare) for (key, page), spare in zip(missing, spares, strict=False)
        ]
        tracked.copying.update({each.key: each for each in pages})
        self._keys.update(each.key for each in pages)
        return pages

    def copied(self, tracked: Stored, keys: Iterable[bytes], *, failed: bool) -> None:
        """Notes that all ranks ended copies of pages, and publishes them unless one failed."""
        failed = failed or not tracked.trusted
        pages = [tracked.copying.pop(key) for key in keys if key in tracked.copying]
        if failed:
            self._counts["saves_failed"] += 1
            tracked.may_store = False
            self._give_back(tracked, pages)
        for each in [] if failed else pages:
            replaced = tracked.written.get(each.page)
            if replaced is not None:
                self._give_back(tracked, [replaced])
            tracked.written[each.page] = each
        self._advance(tracked)

    def distrust(self, tracked: Stored) -> None:
        """Publishes nothing that ranks still copy of a request: its blocks may be wrong."""
        tracked.may_store = tracked.trusted = False

    def finish(self, tracked: Stored) -> None:
        """Ends a request: publishes what is left of it."""
        tracked.finished = True
        self._advance(tracked)

    def drop_ended(self, tracked: Stored) -> None:
        """Gives up pages that wait for others in slots of an ended session."""
        if all(each.spare.batch.slots.usable for each in tracked.written.values()):
            return
        tracked.may_store = False
        self._give_back(tracked, list(tracked.written.values()))
        tracked.written.clear()

    def drop(self, tracked: Stored) -> list[Written]:
        """Ends all stores of a request. Returns the pages that ranks may still be writing."""
        tracked.may_store = False
        tracked.dropped = True
        self._give_back(tracked, list(tracked.written.values()))
        tracked.written.clear()
        copying = list(tracked.copying.values())
        tracked.copying.clear()
        self._keys.difference_update(each.key for each in copying)
        return copying

    def _defers(self, tracked: Stored) -> bool:
        """Returns whether a request may wait for slots."""
        now = self._clock()
        if tracked.deferred_at is None:
            tracked.deferred_at = now
        return now - tracked.deferred_at < LONGEST_DEFERRAL

    def _advance(self, tracked: Stored) -> None:
        """Publishes written pages that follow each other, if they are enough or the last."""
        if tracked.publishing:
            return
        pages = _next_pages(tracked)
        path = [each for each in pages if not each.page.group]
        prompt_pages = tracked.request.num_prompt_tokens // self._page_tokens
        generated = bool(path) and path[0].page.number >= prompt_pages
        if generated and not tracked.finished and len(path) < PAGES_TOGETHER:
            return
        if not pages:
            self._give_up_rest(tracked)
            self._ended(tracked)
            return
        for each in pages:
            del tracked.written[each.page]
        tracked.publishing = True
        end = max(each.page.number for each in pages) + 1
        ids = tracked.request.all_token_ids[: end * self._page_tokens]
        self._waiting.append((tracked, PagesToPublish(tracked.key, ids, pages, tracked.hint)))

    def _all_answered(
        self, part: list[tuple[Stored, PagesToPublish]], found: list[PublishedPages] | None
    ) -> None:
        for number, (tracked, wanted) in enumerate(part):
            self._answered(tracked, wanted.pages, None if found is None else found[number])

    def _answered(
        self, tracked: Stored, pages: Sequence[Written], found: PublishedPages | None
    ) -> None:
        end = max(each.page.number for each in pages) + 1
        tracked.publishing = False
        self._keys.difference_update(each.key for each in pages)
        # Nobody knows about the slots of a call that broke off.
        used = {each.spare for each in pages} if found is None else found.used
        reserve = self._reserve_of(tracked.key)
        reserve.used(each.spare for each in pages if each.spare in used)
        reserve.give_back(each.spare for each in pages if each.spare not in used)
        if found is not None and found.path_end >= end:
            tracked.stored_pages = max(tracked.stored_pages, end)
            self._counts["stored_tokens"] += found.own_page_count * self._page_tokens
            if not tracked.dropped:
                self._news.has(tracked.request, tracked.key, end)
        else:
            self._counts["inserts_failed"] += 1
            tracked.may_store = False
        self._advance(tracked)

    def _give_up_rest(self, tracked: Stored) -> None:
        """Gives up written pages whose path will not come."""
        if tracked.finished and not tracked.copying:
            self._give_back(tracked, list(tracked.written.values()))
            tracked.written.clear()

    def _give_back(self, tracked: Stored, pages: Sequence[Written]) -> None:
        self._keys.difference_update(each.key for each in pages)
        self._reserve_of(tracked.key).give_back(each.spare for each in pages)


def _next_pages(tracked: Stored) -> list[Written]:
    """Returns the first run of the path's written pages, and the other groups' pages up to there.

    Without written pages of the path these are on pages that the store has.
    """
    path: list[Written] = []
    for page in sorted(page for page in tracked.written if not page.group):
        if path and page.number != path[-1].page.number + 1:
            break
        path.append(tracked.written[page])
    end = path[-1].page.number + 1 if path else tracked.stored_pages
    hanging = [each for page, each in tracked.written.items() if page.group and page.number < end]
    return path + hanging
