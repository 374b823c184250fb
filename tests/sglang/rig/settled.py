"""Waits for a store that nobody saves into any more."""

import time

from engine_cases.case import Case
from engine_cases.store import Store
from kvstore_client.testing import wait_until

# Seconds without a new page after which all saves have ended: each takes some milliseconds.
QUIET = 1.5
# Seconds until the store is quiet, on a busy machine.
LIMIT = 60.0


def wait_settled(case: Case, store: Store) -> None:
    """Waits until the store has pages, and no new ones come.

    Pages of sliding windows and states cannot be counted from requests: SGLang decides which of
    them it still has as it saves.
    """
    last = (-1, time.monotonic())

    def settled() -> bool:
        nonlocal last
        count = store.stats().counters.inserted_page_count
        if count != last[0]:
            last = count, time.monotonic()
        return count > 0 and time.monotonic() - last[1] > QUIET

    case.require(wait_until(settled, LIMIT), "the servers did not stop saving")
