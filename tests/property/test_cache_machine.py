"""The cache against the naive model: three page sizes, either index, each eviction policy."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from machine import cache_machine
from machine.state import COUNTS

# Of what a profile allows each machine takes so much, all together about all of it: `ci`
# runs the same examples each time, and `nightly` is for finding new ones.
SHARE = 0.16


@pytest.mark.parametrize(
    ("machine", "share"),
    [
        (cache_machine.OneTokenPages, SHARE),
        (cache_machine.CacheMachine, SHARE),
        (cache_machine.SixteenTokenPages, SHARE),
        (cache_machine.HashedPages, SHARE / 3),
        (cache_machine.TwoTiers, SHARE),
        (cache_machine.TwoTiersOfHashedPages, SHARE / 3),
        (cache_machine.GroupedPages, SHARE),
        (cache_machine.HashedGroupedPages, SHARE / 3),
        (cache_machine.GroupedPagesInTwoTiers, SHARE),
        (cache_machine.PagesInRuns, SHARE),
        (cache_machine.PagesInRunsOfTwoTiers, SHARE / 2),
    ],
    ids=[
        *("page-1", "page-2", "page-16", "hash", "two-tiers", "two-tiers-hash"),
        *("groups", "groups-hash", "groups-two-tiers", "runs", "runs-two-tiers"),
    ],
)
def test_cache_is_the_naive_model(
    machine: type[cache_machine.CacheMachine],
    share: float,
    record_property: Callable[[str, object], None],
) -> None:
    """Whatever the order of calls, the cache answers as the model and keeps every law."""
    COUNTS.clear()
    examples = int(settings().max_examples * share)
    chosen = settings(stateful_step_count=50, max_examples=examples)
    run_state_machine_as_test(machine, settings=chosen)
    counts = ", ".join(f"{rule} {n}" for rule, n in sorted(COUNTS.items()))
    record_property("summary", f"{machine.__name__} examples {examples}: {counts}")
