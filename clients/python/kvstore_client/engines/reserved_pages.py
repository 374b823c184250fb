"""Slots for as many of a sequence's pages as a store has room for."""

from typing import Final

from kvstore_client.calls.deadlines import StoreBudget
from kvstore_client.errors import PoolExhausted, StoreError
from kvstore_client.namespace import Namespace
from kvstore_client.pages.reservation import Acquired

# Seconds for all calls of a save. No request waits for a save, but it must not hold slots long.
SAVE_BUDGET: Final = 5.0
# Seconds without progress after which this engine saves a sequence that another one inserts.
IDLE_BEFORE_TAKEOVER: Final = 2.0
# Each try reserves half as many pages.
TRIES_FOR_ROOM: Final = 4


def with_first_pages(
    acquired: Acquired, namespace: Namespace, page_count: int, budget: StoreBudget
) -> Acquired:
    """Reserves slots for the first missing pages, if the store lacks slots for all of them."""
    if acquired.failure is not None or acquired.in_flight or acquired.reservation:
        return acquired
    start = acquired.match.page_count
    wanted = page_count - start
    for _ in range(TRIES_FOR_ROOM):
        wanted //= 2
        if not wanted:
            break
        try:
            acquired.reservation = namespace.reserve(
                start_page=start, page_count=wanted, budget=budget
            )
        except PoolExhausted:
            continue
        except StoreError:
            pass
        break
    return acquired
