"""Pages for many sequences at once: one call to the store."""

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Protocol

from kvstore_client import Reservation, grow_reservations
from kvstore_client.errors import PoolExhausted, StoreError


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
