"""The store's pages for sequences: the first acquisition, and growth in one call for many."""

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

# Slots reserved ahead, so that decoding asks the store once for this many pages.
RESERVE_AHEAD: Final = 4
# If no page of a prompt matched, fewer known tokens are computed again: copying their page and a
# chunk that is not cold cost what they save. Measured: docs/engine.md.
LEAST_COPIED: Final = 8


class Acquisition(NamedTuple):
    """The match of a sequence and slots for the rest, and whether it can grow.

    With ``in_flight`` nothing is held: another worker computes what is not cached.
    """

    acquired: Acquired
    grows: bool = True
    in_flight: InFlight | None = None


def is_worth_copying(match: Match) -> bool:
    """Returns whether a match's source saves more than it costs.

    It does after matched pages, because nothing has to run then, and with at least ``LEAST_COPIED``
    tokens.
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
    """Matches all ids, of ``page_count`` pages, and reserves the rest, with some pages ahead.

    No page beyond ``page_limit`` is reserved. If there is no room, it reserves for the ids only,
    then for fewer of them. ``shared`` and ``yield_idle`` are as in ``SequencePages``. Raises
    ``ValueError`` for invalid tokens.
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
    """Reserves after a match. If that is incomplete, the sequence does not grow in the store."""
    reservation = _reserve_some(namespace, match.page_count, page_count, budget)
    complete = reservation is not None and reservation.page_count == page_count
    return Acquisition(Acquired(match, reservation), grows=complete)


def _reserve_some(
    namespace: Namespace, start_page: int, page_count: int, budget: StoreBudget
) -> Reservation | None:
    """Reserves ``page_count`` pages, or fewer if there is no room for them.

    Each try asks for half of the one before, down to one page. The prompt's first pages are then
    the store's, and the pages after them private. Returns None if the store gives none.
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
        """The reservation that can grow."""
        ...

    def lacking(self, token_count: int) -> int:
        """Counts the pages that are missing for ``token_count`` tokens."""
        ...

    def ahead(self, token_count: int) -> int:
        """Counts the pages to ask for."""
        ...

    def take_grown(self) -> None:
        """Adds the new pages of the reservation."""
        ...


def grow_together(wanted: Sequence[tuple[Growing, int]]) -> bool:
    """Acquires the store's pages for each sequence's tokens, some ahead if there is room.

    Asks nothing if no sequence lacks pages. Otherwise one call for each namespace and session grows
    all sequences, all or none. If there is no room, those that lack pages get exactly these.
    Returns whether no sequence lacks pages; a failure of the store raises nothing.
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
