"""Waits between attempts."""

from random import Random

from kvstore_client.calls.deadlines import Backoff


def test_waits_double_up_to_the_longest() -> None:
    """Each wait is between half and all of a bound that doubles and then stays."""
    backoff = Backoff(0.1, 0.5, Random(1))
    for bound in (0.1, 0.2, 0.4, 0.5, 0.5):
        assert bound / 2 <= backoff.delay() <= bound


def test_a_success_begins_anew() -> None:
    """After a reset the first wait is the first again."""
    backoff = Backoff(0.1, 10, Random(1))
    for _ in range(5):
        backoff.delay()
    backoff.reset()
    assert backoff.delay() <= 0.1


def test_two_clients_do_not_wait_in_step() -> None:
    """Without a seed the waits of two clients differ."""
    assert [Backoff(1, 1).delay() for _ in range(8)] != [Backoff(1, 1).delay() for _ in range(8)]
