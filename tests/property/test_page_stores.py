"""Tier 3 over page stores of each kind, whatever they do: no wrong page, and none that returns."""

from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test
from page_stores import tier_machine

# Each example is a store of its own.
SHARE = 0.5


@pytest.mark.parametrize(
    ("machine", "share"),
    [
        (tier_machine.MemoryTier, SHARE),
        (tier_machine.ForgetfulMemoryTier, SHARE),
        (tier_machine.SlabTier, SHARE / 3),
    ],
    ids=["memory", "forgetful-memory", "slab"],
)
def test_tier_3_serves_what_was_written(
    machine: type[tier_machine.TierMachine],
    share: float,
    record_property: Callable[[str, object], None],
) -> None:
    """Each matched page has its own bytes, no removed page returns, and no slot is lost."""
    tier_machine.COUNTS.clear()
    examples = max(int(settings().max_examples * share), 5)
    chosen = settings(stateful_step_count=40, max_examples=examples)
    run_state_machine_as_test(machine, settings=chosen)
    counts = ", ".join(f"{name} {n}" for name, n in sorted(tier_machine.COUNTS.items()))
    record_property("summary", f"{machine.__name__} examples {examples}: {counts}")
