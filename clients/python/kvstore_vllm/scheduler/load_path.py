"""Lookups and loads: from a request's arrival until the store's pages are in its blocks."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from kvstore_client import Match
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.scheduler.store_threads import Answers
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.scheduler.tracked_requests import RequestLookup, Tracked
from kvstore_vllm.scheduler.transfer_jobs import Jobs
from kvstore_vllm.step_plan import BlockTransfer, runs_between


class LoadPath:
    """Looks requests up in the store, and plans the copies of hits into their blocks.

    A match is held from its answer until every rank ended the copy, or until the request no
    longer needs it. One thread uses it.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        work: StoreWork,
        answers: Answers,
        jobs: Jobs,
        counts: "Counter[str]",
        *,
        usable: Callable[[], bool],
        joining: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._work = work
        self._answers = answers
        self._jobs = jobs
        self._counts = counts
        self._usable = usable
        self._joining = joining
        self._clock = clock
        self._planned: list[BlockTransfer] = []
        # True after a wait without an answer, until the store answers a lookup.
        self._slow = False
        # The number of loads that not every rank has ended.
        self.open_count = 0

    def look_up(self, tracked: Tracked) -> None:
        """Begins a lookup. Without a whole page or a usable store it is a miss at once."""
        lookup = tracked.lookup = RequestLookup()
        self._counts["asked_tokens"] += tracked.request.num_tokens
        self._ask(tracked, lookup)

    def _ask(self, tracked: Tracked, lookup: RequestLookup) -> None:
        """Sends the lookup, unless ranks are about to reach the store: then a later call does."""
        pages = tracked.request.num_tokens // self._settings.page_tokens
        # In this order: a rank that joins between the two calls counts in the second.
        if pages and self._joining():
            return
        if pages and not self._usable():
            self._counts["lookups_unavailable"] += 1
            lookup.answered = True
            return
        if not pages:
            self._counts["lookups_miss"] += 1
            lookup.answered = True
            return
        lookup.asked_at = self._clock()
        ids = tracked.request.all_token_ids[: pages * self._settings.page_tokens]
        self._answers.ask(
            partial(self._work.look_up, tracked.key, ids),
            partial(self._answered, tracked, lookup, pages),
        )

    def matched_tokens(self, tracked: Tracked, computed_tokens: int) -> int | None:
        """Returns the number of loadable tokens beyond the computed ones; None if unknown yet.

        Waits up to ``scheduling_wait`` for the store's answer, at most once a request.
        """
        if not tracked.may_load:
            return 0
        if tracked.lookup is None:
            self.look_up(tracked)
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
        lookup.computed_tokens = computed_tokens
        tokens = lookup.page_count * self._settings.page_tokens
        if not self._settings.load_async:
            # A load within a step must leave the step one token to compute.
            most = tracked.request.num_tokens - 1
            tokens = min(tokens, most - most % self._settings.page_tokens)
        return max(0, tokens - computed_tokens)

    def _await_answer(self, tracked: Tracked, lookup: RequestLookup) -> None:
        """Waits for the store's answer, unless a wait is pointless.

        "Unknown yet" costs the request a step, and the answer usually takes less than one
        millisecond. A wait delays all requests. So none begins if the store is unusable, or
        while the lookup of an earlier wait is unanswered, since the store may hang.
        """
        wait = self._settings.scheduling_wait
        if not wait or tracked.waited or self._slow:
            return
        if lookup.asked_at is None or not self._usable():
            return
        tracked.waited = True
        self._answers.deliver_until(lambda: lookup.answered, wait)
        self._slow = not lookup.answered

    def allocated(self, tracked: Tracked, block_ids: Sequence[int], loaded_tokens: int) -> None:
        """Plans the load of the offered tokens into blocks, or releases the match."""
        lookup, tracked.lookup = tracked.lookup, None
        if lookup is None:
            return
        tracked.stored_pages = max(tracked.stored_pages, lookup.page_count)
        first = lookup.computed_tokens // self._settings.page_tokens
        end = first + loaded_tokens // self._settings.page_tokens
        if lookup.match is None or first == end:
            lookup.drop()
            return
        runs = runs_between(lookup.match.pages.dated_runs, first, end)
        done = partial(self._loaded, tracked, lookup.match, end - first)
        request_id = tracked.request.request_id
        self._planned.append(self._jobs.begin(request_id, block_ids[first:end], runs, done))
        tracked.open_loads += 1
        self.open_count += 1

    def take_planned(self) -> list[BlockTransfer]:
        """Returns the loads that the ranks begin in this step."""
        planned, self._planned = self._planned, []
        return planned

    def _answered(
        self, tracked: Tracked, lookup: RequestLookup, asked: int, match: Match | None
    ) -> None:
        if match is None:
            match = Match()
        elif match.failure is None:
            self._slow = False
        if lookup.given_up:
            match.release()
            return
        lookup.answered = True
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

    def _loaded(self, tracked: Tracked, match: Match, page_count: int, ok: bool) -> None:  # noqa: FBT001
        match.release()
        tracked.open_loads -= 1
        self.open_count -= 1
        if ok:
            self._counts["loaded_tokens"] += page_count * self._settings.page_tokens
        else:
            # The tokens are computed after one failure, because retries might never end.
            tracked.may_load = False
            self._counts["loads_failed"] += 1
