"""The pages of requests' matches: which are loadable, and which ranks copy from."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from kvstore_client import DatedRun, Match
from kvstore_vllm.scheduler.prefix_lookups import LookedUp, PrefixLookups
from kvstore_vllm.step_plan import runs_between

# Seconds that a match is held while vLLM has no memory for its request, which asks again later.
LONGEST_UNUSED: Final = 2.0
# The tier of a page of which nothing else is known.
MEMORY: Final = 1


class Loading(LookedUp, Protocol):
    """A request with its lookup, and the matches that ranks copy from."""

    loading: list[Match]


class GroupPage(NamedTuple):
    """A page of a group, by the number of the path's page that ends where it ends."""

    group: int
    number: int


class MatchedPages:
    """Says which pages of a request are loadable, and holds those that are loaded.

    One thread uses it.
    """

    def __init__(self, lookups: PrefixLookups, clock: Callable[[], float] = time.monotonic) -> None:
        self._lookups = lookups
        self._clock = clock

    def has(self, tracked: Loading, page: GroupPage) -> bool | None:
        """Returns whether a page is loadable; None while the answer is not there."""
        lookup = tracked.lookup
        if lookup is None or not tracked.may_load:
            return False
        if not lookup.answered:
            return None
        return page.number < lookup.page_count and _holds(lookup.match, page)

    def take(self, tracked: Loading, pages: Sequence[GroupPage]) -> tuple[DatedRun, ...] | None:
        """Returns the slots of pages, and holds them until :meth:`loaded`.

        Returns None if one is not held, although :meth:`has` said so.
        """
        lookup = tracked.lookup
        if lookup is None or lookup.match is None:
            return None
        match = lookup.match
        if not all(each.number < lookup.page_count and _holds(match, each) for each in pages):
            return None
        self._lookups.take(tracked)
        tracked.loading.append(match)
        return tuple(run for part in _consecutive(pages) for run in _runs_of(match, part))

    def tier(self, tracked: Loading, page: GroupPage) -> int:
        """Returns the tier of a page that is being loaded, as ``Match.page_tiers`` has it.

        A page of another group counts as the page of the path that ends where it ends.
        """
        for match in reversed(tracked.loading):
            if page.number < len(match.page_tiers):
                return match.page_tiers[page.number]
        return MEMORY

    def loaded(self, tracked: Loading) -> None:
        """Releases the pages that were loaded."""
        while tracked.loading:
            tracked.loading.pop().release()

    def expire(self, tracked: Loading) -> None:
        """Releases a match that vLLM has not used for long. The request is looked up again."""
        lookup = tracked.lookup
        if lookup is None or lookup.match is None:
            return
        if self._clock() - lookup.answered_at > LONGEST_UNUSED:
            self._lookups.drop(tracked)


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
