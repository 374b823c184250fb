"""Lookups of requests: one match each, held until its pages are loaded or not needed."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from kvstore_client import DatedRun, GroupWindow, Match
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.store_threads import Answers
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.scheduler.tracked_requests import EngineRequest, RequestLookup
from kvstore_vllm.step_plan import runs_between

# Seconds that scheduling waits for the answer to a request, once: it usually takes less than one
# millisecond, and "unknown yet" costs the request a step.
SCHEDULING_WAIT: Final = 0.002
# Seconds that a match is held for a request that vLLM has no memory for. Then it is asked anew.
LONGEST_UNUSED: Final = 2.0


@dataclass(eq=False, slots=True)
class LookedUp:
    """A request with its lookup, and the matches that ranks copy from."""

    request: EngineRequest
    key: RequestKey
    may_load: bool = True
    lookup: RequestLookup | None = None
    answered_at: float = 0.0
    waited: bool = False
    # The number of pages from the beginning that the store is known to have had.
    stored_pages: int = 0
    loading: list[Match] = field(default_factory=list)


class GroupPage(NamedTuple):
    """A page of a group, by the number of the path's page that ends where it ends."""

    group: int
    number: int


class Lookups:
    """Matches requests, and says which pages are loadable. One thread uses it.

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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``groups`` are the windows of the groups beside the path."""
        self._groups = groups
        self._settings = settings
        self._work = work
        self._answers = answers
        self._counts = counts
        self._usable = usable
        self._joining = joining
        self._clock = clock
        self._slow = False

    def begin(self, tracked: LookedUp) -> None:
        """Begins a lookup. Without a whole page or a usable store it is a miss at once."""
        lookup = tracked.lookup = RequestLookup()
        self._counts["asked_tokens"] += tracked.request.num_tokens
        self._ask(tracked, lookup)

    def known(self, tracked: LookedUp) -> bool:
        """Returns whether the answer is there. Waits for it a little, at most once a request.

        An answer that takes longer than ``lookup_timeout`` is a miss.
        """
        self._answers.deliver()
        if not tracked.may_load:
            return True
        if tracked.lookup is None:
            self.begin(tracked)
        lookup = tracked.lookup
        assert lookup is not None
        if not lookup.answered and lookup.asked_at is None:
            self._ask(tracked, lookup)
        if not lookup.answered:
            self._await(tracked, lookup)
        if not lookup.answered:
            asked_at = lookup.asked_at
            if asked_at is None or self._clock() - asked_at < self._settings.lookup_timeout:
                return False
            self._counts["lookups_timeout"] += 1
            lookup.drop()
        return True

    def has(self, tracked: LookedUp, page: GroupPage) -> bool | None:
        """Returns whether a page is loadable; None while the answer is not there."""
        lookup = tracked.lookup
        if lookup is None or not tracked.may_load:
            return False
        if not lookup.answered:
            return None
        return page.number < lookup.page_count and _holds(lookup.match, page)

    def take(self, tracked: LookedUp, pages: Sequence[GroupPage]) -> tuple[DatedRun, ...] | None:
        """Returns the slots of pages, and holds them until :meth:`loaded`.

        Returns None if one is not held, although :meth:`has` said so.
        """
        lookup = tracked.lookup
        if lookup is None or lookup.match is None:
            return None
        match = lookup.match
        if not all(each.number < lookup.page_count and _holds(match, each) for each in pages):
            return None
        tracked.loading.append(match)
        tracked.stored_pages = max(tracked.stored_pages, lookup.page_count)
        tracked.lookup = None
        return tuple(run for part in _consecutive(pages) for run in _runs_of(match, part))

    def loaded(self, tracked: LookedUp) -> None:
        """Releases the pages that were loaded."""
        while tracked.loading:
            tracked.loading.pop().release()

    def drop(self, tracked: LookedUp) -> None:
        """Releases what a lookup found, because nothing of it is loaded."""
        lookup, tracked.lookup = tracked.lookup, None
        if lookup is not None:
            tracked.stored_pages = max(tracked.stored_pages, lookup.page_count)
            lookup.drop()

    def expire(self, tracked: LookedUp) -> None:
        """Releases a match that vLLM has not used for long. The request is looked up again."""
        lookup = tracked.lookup
        if lookup is None or lookup.match is None:
            return
        if self._clock() - tracked.answered_at > LONGEST_UNUSED:
            self.drop(tracked)

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
        self._answers.ask(
            partial(self._work.look_up, tracked.key, ids, self._groups),
            partial(self._answered, tracked, lookup, pages),
        )

    def _await(self, tracked: LookedUp, lookup: RequestLookup) -> None:
        """Waits for the answer, unless the store was slow to answer the last one."""
        if tracked.waited or self._slow or lookup.asked_at is None:
            return
        tracked.waited = True
        until = self._clock() + SCHEDULING_WAIT
        while not lookup.answered and (left := until - self._clock()) > 0:
            self._answers.wait(left)
            self._answers.deliver()
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
        tracked.answered_at = self._clock()
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


def _holds(match: Match | None, page: GroupPage) -> bool:
    """Returns whether a match has a page of a group. The path's are counted elsewhere."""
    if match is None or not page.group:
        return match is not None
    found = match.groups.get(page.group)
    return found is not None and 0 <= page.number - found.start_page < len(found.pages)


def _consecutive(pages: Sequence[GroupPage]) -> Iterator[Sequence[GroupPage]]:
    """Yields the longest runs of pages that follow each other in one group."""
    start = 0
    for end in range(1, len(pages) + 1):
        before = pages[end - 1]
        if end == len(pages) or pages[end] != (before.group, before.number + 1):
            yield pages[start:end]
            start = end


def _runs_of(match: Match, pages: Sequence[GroupPage]) -> tuple[DatedRun, ...]:
    """Returns the slots of consecutive pages of one group."""
    group, first = pages[0]
    start, found = match.groups[group] if group else (0, match.pages)
    return runs_between(found.dated_runs, first - start, first - start + len(pages))
