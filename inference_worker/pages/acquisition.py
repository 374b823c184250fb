"""How a sequence comes to its first pages in the store."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Final, NamedTuple, Protocol

from kvstore_client import (
    Acquired,
    InFlight,
    Match,
    Namespace,
    Reservation,
    StoreBudget,
    grow_reservations,
)
from kvstore_client.errors import PoolExhausted, StoreError

# Slots reserved beyond what is needed now, so that decoding asks the store once in as many pages.
RESERVE_AHEAD: Final = 4
# Of a prompt of which no page is matched, fewer known tokens are computed anew: a copy of their
# page and a chunk that is not cold cost what they save. Measured: docs/engine.md.
LEAST_COPIED: Final = 8


class Acquisition(NamedTuple):
    """What is cached of a sequence and slots for the rest, and whether more can be asked for.

    With ``in_flight`` nothing is held: another computes what is not cached.
    """

    acquired: Acquired
    grows: bool = True
    in_flight: InFlight | None = None


def is_worth_copying(match: Match) -> bool:
    """Returns whether a match's source saves more than it costs.

    It does behind matched pages, where nothing has to run then, and where it has
    ``LEAST_COPIED`` tokens.
    """
    if match.source is None:
        return False
    if match.page_count or match.next_token is not None:
        return True
    return match.source.token_count >= LEAST_COPIED


def acquire_pages(
    namespace: Namespace,
    ids: Sequence[int],
    *,
    page_count: int,
    page_limit: int,
    accept_next_token: bool,
    shared: bool,
    yield_idle: float | None,
    budget: StoreBudget,
) -> Acquisition:
    """Matches all ids, of ``page_count`` pages, and reserve the rest, some of ``page_limit`` ahead.

    Where there is no room for that, for the ids alone, else for less of them. ``shared`` and
    ``yield_idle`` are as in ``SequencePages``. Raises ``ValueError`` for tokens that are none.
    """
    if not shared:
        return _reserve_less(namespace, Match(), page_count, budget)
    acquired = namespace.acquire(
        ids,
        total_page_count=min(page_count + RESERVE_AHEAD, page_limit),
        accept_next_token=accept_next_token,
        yield_to_in_flight=yield_idle is not None,
        yield_idle=yield_idle,
        budget=budget,
    )
    if yield_idle is not None and acquired.in_flight is not None and not acquired.holds:
        return Acquisition(acquired, in_flight=acquired.in_flight)
    if acquired.reservation is not None or acquired.failure is not None:
        return Acquisition(acquired)
    return _reserve_less(namespace, acquired.match, page_count - acquired.match.page_count, budget)


def _reserve_less(
    namespace: Namespace, match: Match, page_count: int, budget: StoreBudget
) -> Acquisition:
    """Reserves behind a match; where that is not all that was wanted, nothing more is asked for."""
    reservation = _reserve_some(namespace, match.page_count, page_count, budget)
    complete = reservation is not None and reservation.page_count == page_count
    return Acquisition(Acquired(match, reservation), grows=complete)


def _reserve_some(
    namespace: Namespace, start_page: int, page_count: int, budget: StoreBudget
) -> Reservation | None:
    """Reserves so many pages, or less where there is no room for them.

    Each try asks for half of the one before, down to one page: the prompt's first pages are then
    the store's, and all behind them private. None where the store gives none.
    """
    while page_count > 0:
        try:
            return namespace.reserve(start_page=start_page, page_count=page_count, budget=budget)
        except PoolExhausted:
            page_count //= 2
        except StoreError:
            break
    return None


class Growing(Protocol):
    """A sequence's pages, of which some may be reserved in the store."""

    @property
    def reservation(self) -> Reservation | None:
        """What can grow."""
        ...

    def lacking(self, token_count: int) -> int:
        """Counts the pages that are missing for so many tokens."""
        ...

    def ahead(self, token_count: int) -> int:
        """Counts the pages to ask for."""
        ...

    def take_grown(self) -> None:
        """Takes up what came."""
        ...


def grow_together(wanted: Sequence[tuple[Growing, int]]) -> bool:
    """Have the store's pages for each sequence's tokens, several ahead where it has as many.

    Nothing is asked where none lacks any. Else all are topped up in one call for each namespace
    and session, all or none; where there is no room for that, those that lack pages have just
    these. Tells whether nobody lacks any; a failure of the store is none.
    """
    if not any(pages.lacking(tokens) for pages, tokens in wanted):
        return True
    calls: dict[Hashable, list[tuple[Growing, int]]] = defaultdict(list)
    for pages, tokens in wanted:
        if pages.reservation is not None:
            calls[pages.reservation.growth_group].append((pages, tokens))
    for call in calls.values():
        if any(pages.lacking(tokens) for pages, tokens in call):
            _grow(call)
    return not any(pages.lacking(tokens) for pages, tokens in wanted)


def _grow(call: Sequence[tuple[Growing, int]]) -> None:
    asked = {
        "ahead": [(pages, pages.ahead(tokens)) for pages, tokens in call],
        "lacking": [(pages, pages.lacking(tokens)) for pages, tokens in call],
    }
    for missing in asked.values():
        growing = [
            (pages, pages.reservation, count)
            for pages, count in missing
            if count and pages.reservation is not None
        ]
        try:
            grow_reservations([(each, each.page_count + count) for _, each, count in growing])
        except PoolExhausted:
            continue
        except StoreError:
            pass
        for pages, _, _ in growing:
            pages.take_grown()
        return
