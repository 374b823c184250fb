"""The clock."""

import time

from kvstore.service.clock import MONOTONIC, Clock


def test_the_clock_is_the_one_that_clients_count_by() -> None:
    """Its times lie between CLOCK_MONOTONIC's before and after, so that both sides agree."""
    clock: Clock = MONOTONIC
    before = time.clock_gettime(time.CLOCK_MONOTONIC)
    now = clock()
    assert before <= now <= time.clock_gettime(time.CLOCK_MONOTONIC)
