"""Lookups of both connectors: asked, waited for, timed out, and taken or dropped."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from kvstore_client import GroupWindow, Match
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.prefetches import Prefetches
from kvstore_vllm.scheduler.store_news import NoNews, StoreNews
from kvstore_vllm.scheduler.store_threads import Answers
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.scheduler.tracked_requests import EngineRequest, RequestLookup


class LookedUp(Protocol):
    """A request that may be looked up.

    ``waited`` is True once scheduling has waited for an answer about it. ``stored_pages`` is the
    number of pages from the beginning that the store is known to have had.
    """

    request: EngineRequest
    key: RequestKey
    may_load: bool
    lookup: RequestLookup | None
    waited: bool
    stored_pages: int


class PrefixLookups:
    """Looks requests up in the store, and waits a little for the answers. One thread uses it.

    A match is held from its answer until :meth:`drop`, or until the caller of :meth:`take`
    releases it.

    - ``usable`` returns whether the store answers and every rank reaches its memory.
    - ``joining`` returns whether the store or ranks are about to. Lookups wait then.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        work: StoreWork,
        answers: Answers,
        counts: "Counter[str]",
        *,
        usable: Callable[[], bool],
        joining: Callable[[], bool],
        groups: Sequence[GroupWindow] = (),
        news: StoreNews | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``groups`` are the windows of the KV cache groups beside the path.

        ``news`` hears which pages of requests the store has.
        """
        self._settings = settings
        self._work = work
        self._answers = answers
        self._counts = counts
        self._usable = usable
        self._joining = joining
        self._groups = groups
        self._news: StoreNews = NoNews() if news is None else news
        # Loads pages ahead of lookups that wait for a thread. None: nothing is.
        self.prefetches: Prefetches | None = None
        self._clock = clock
        # Seconds that the next step may still wait for answers.
        self._wait_left = settings.scheduling_wait
        # True after a wait without an answer, until the store answers a lookup.
        self._slow = False

    def begin(self, tracked: LookedUp) -> None:
        """Begins a lookup. Without a whole page or a usable store it is a miss at once."""
        lookup = tracked.lookup = RequestLookup()
        self._counts["asked_tokens"] += tracked.request.num_tokens
        self._ask(tracked, lookup)

    def find(self, tracked: LookedUp) -> RequestLookup | None:
        """Returns a request's answered lookup; None while the answer is not there.

        Begins a lookup if the request has none. Waits for the store's answer once a request, and
        ``scheduling_wait`` at most in a step. After ``lookup_timeout`` the answer is a miss.
        """
        if tracked.lookup is None:
            self.begin(tracked)
        lookup = tracked.lookup
        assert lookup is not None
        if not lookup.answered and lookup.asked_at is None:
            self._ask(tracked, lookup)
        if not lookup.answered:
            self._await_answer(tracked, lookup)
        if not lookup.answered:
            asked_at = lookup.asked_at
            if asked_at is None or self._clock() - asked_at < self._settings.lookup_timeout:
                return None
            self._counts["lookups_timeout"] += 1
            lookup.drop()
        return lookup

    def take(self, tracked: LookedUp) -> RequestLookup | None:
        """Ends a request's lookup and returns it with its match, which the caller releases."""
        lookup, tracked.lookup = tracked.lookup, None
        if lookup is not None:
            tracked.stored_pages = max(tracked.stored_pages, lookup.page_count)
        return lookup

    def drop(self, tracked: LookedUp) -> None:
        """Ends a request's lookup and releases its match, now or when it arrives."""
        lookup = self.take(tracked)
        if lookup is not None:
            lookup.drop()

    def end_step(self) -> None:
        """Allows the next step to wait ``scheduling_wait`` again."""
        self._wait_left = self._settings.scheduling_wait

    def _ask(self, tracked: LookedUp, lookup: RequestLookup) -> None:
        """Sends the lookup, unless ranks are about to reach the store: then a later call does."""
        pages = tracked.request.num_tokens // self._settings.page_tokens
        # In this order: a rank that joins between the two calls counts in the second.
        if pages and self._joining():
            return
        if not pages or not self._usable():
            self._counts["lookups_unavailable" if pages else "lookups_miss"] += 1
            lookup.answered = True
            return
        lookup.asked_at = self._clock()
        ids = tracked.request.all_token_ids[: pages * self._settings.page_tokens]
        if self.prefetches is not None:
            self.prefetches.before_lookup(tracked.key, ids, self._answers.under_way)
        self._answers.ask(
            partial(self._work.look_up, tracked.key, ids, self._groups),
            partial(self._answered, tracked, lookup, pages),
        )

    def _await_answer(self, tracked: LookedUp, lookup: RequestLookup) -> None:
        """Waits for the store's answer, unless a wait is pointless.

        "Unknown yet" costs the request a step, and the answer usually takes less than one
        millisecond. A wait delays all requests. So none begins if the store is unusable, or
        while the lookup of an earlier wait is unanswered, since the store may hang.
        """
        if self._wait_left <= 0 or tracked.waited or self._slow:
            return
        if lookup.asked_at is None or not self._usable():
            return
        tracked.waited = True
        began = self._clock()
        self._answers.deliver_until(lambda: lookup.answered, self._wait_left)
        self._wait_left -= self._clock() - began
        self._slow = not lookup.answered

    def _answered(
        self, tracked: LookedUp, lookup: RequestLookup, asked: int, match: Match | None
    ) -> None:
        if match is None:
            match = Match()
        elif match.failure is None:
            self._slow = False
        if lookup.given_up:
            match.release()
            return
        lookup.answered = True
        lookup.answered_at = self._clock()
        page_tokens = self._settings.page_tokens
        lookup.page_count = tracked.key.settled(match.token_count, page_tokens) // page_tokens
        outcome = "miss"
        if lookup.page_count:
            lookup.match = match
            outcome = "full" if lookup.page_count == asked else "partial"
        else:
            match.release()
            outcome = "unavailable" if match.failure else "miss"
        self._counts[f"lookups_{outcome}"] += 1
        self._counts["matched_tokens"] += lookup.page_count * page_tokens
        if match.failure is None:
            self._tell(tracked, match.token_count // page_tokens)

    def _tell(self, tracked: LookedUp, page_count: int) -> None:
        """Passes on how many of a request's pages the store has."""
        request, key = tracked.request, tracked.key
        if page_count:
            self._news.has(request, key, page_count)
        # Pages of other groups may be what is missing.
        if not self._groups:
            self._news.lacks(request, key, page_count)
