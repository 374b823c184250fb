"""A cache recovered from each write of its journal, beside the cache that wrote it.

The cache machine calls the cache in any order. After each call the cache is recovered from every
beginning of the writes, with the generations of that moment. All invariants have to hold. A page
whose generation did not move is there, with its tokens and its slot, and one that moved is not.
A removed page never comes back, and holds keep their slots. Some machines have a journal in real
memory that is cleaned at each write, so what is recovered has mostly been copied by the cleaner.
"""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from machine.state import COUNTS
from recoveries import machines

# Each example takes about two hundred recoveries.
SHARE = 0.04


@pytest.mark.parametrize(
    ("machine", "share"),
    [
        (machines.Journaled, SHARE),
        (machines.JournaledGroups, SHARE),
        (machines.JournaledTiers, SHARE / 2),
        (machines.JournaledGroupsInTiers, SHARE / 2),
        (machines.JournaledHashes, SHARE / 4),
        (machines.JournaledRuns, SHARE / 2),
        (machines.Cleaned, SHARE),
        (machines.CleanedGroups, SHARE / 2),
        (machines.CleanedTiers, SHARE / 2),
        (machines.CleanedGroupsInTiers, SHARE / 2),
    ],
    ids=[
        *("page-2", "groups", "two-tiers", "groups-two-tiers", "hash", "runs"),
        *("cleaned", "cleaned-groups", "cleaned-two-tiers", "cleaned-groups-two-tiers"),
    ],
)
def test_a_cache_is_recovered_from_each_write(
    machine: type[machines.Journaled],
    share: float,
    record_property: Callable[[str, object], None],
) -> None:
    """Wherever the writes end, what was promised until then is there."""
    COUNTS.clear()
    examples = max(int(settings().max_examples * share), 3)
    chosen = settings(stateful_step_count=50, max_examples=examples)
    run_state_machine_as_test(machine, settings=chosen)
    text = f"{machine.__name__} examples {examples}: {COUNTS['recoveries']} recoveries"
    record_property("summary", text)


@pytest.mark.parametrize(
    ("machine", "share"),
    [
        (machines.Ahead, SHARE),
        (machines.AheadGroups, SHARE / 2),
        (machines.AheadHashes, SHARE / 4),
        (machines.AheadCleaned, SHARE),
        (machines.AheadCleanedGroups, SHARE / 2),
    ],
    ids=["page-2", "groups", "hash", "cleaned", "cleaned-groups"],
)
def test_a_head_start_comes_to_the_same(
    machine: type[machines.Journaled],
    share: float,
    record_property: Callable[[str, object], None],
) -> None:
    """Whatever came between, its completion equals a recovery from nothing, or declines."""
    COUNTS.clear()
    examples = max(int(settings().max_examples * share), 3)
    chosen = settings(stateful_step_count=50, max_examples=examples)
    run_state_machine_as_test(machine, settings=chosen)
    completed, count = COUNTS.pop("ahead: completed"), COUNTS["recoveries"]
    others = {name: times for name, times in COUNTS.items() if name.startswith("ahead")}
    record_property("summary", f"{machine.__name__}: {completed} of {count}, {others}")
    assert 2 * completed > count
