"""The default limits fit each other."""

from core.core_builders import FILLER, PAGE_TOKENS
from kvstore.core.values.limits import Limits


def test_a_tombstone_outlives_every_call() -> None:
    """No call can arrive after the tombstone that its undoing left is gone."""
    assert Limits().tombstone_ttl > Limits().max_deadline


def test_times_to_live_are_in_order() -> None:
    """The default lies between the shortest and the longest."""
    limits = Limits()
    assert 0 < limits.min_ttl <= limits.default_ttl <= limits.max_ttl


def test_the_longest_sequence_fits_a_message() -> None:
    """A sequence of ``max_tokens`` leaves room in a message for all else."""
    assert Limits().max_tokens * len(FILLER) <= Limits().max_message_bytes // 4


def test_every_limit_allows_something() -> None:
    """No limit is so small that nothing can be done under it."""
    limits = Limits()
    assert limits.max_tokens > PAGE_TOKENS
    assert limits.max_holds_per_lease >= 2
    assert min(limits.max_batch_size, limits.max_namespaces, limits.max_processes_per_lease) > 0
