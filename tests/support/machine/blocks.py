"""The cache machine's rule about who follows blocks, and about sweeps over all of them."""

from hypothesis.stateful import invariant

from kvstore.core.pool.copy_changes import CopySweep
from machine.state import COUNTS, OWNER, MachineState
from naive.blocks import NaiveBlocks, whole_paths
from naive.copies import FIRST, LOWER


@invariant()
def blocks_are_what_is_there(machine: MachineState) -> None:
    """A consumer of all changes has every whole page of a path, tier by tier.

    Another one begins with nothing, and gets a list of all in parts, between the changes.
    """
    taken = machine.blocks.take(OWNER.tenant)
    assert not taken.lost_count
    for each in taken.changes:
        machine.followed.apply(each)
        machine.swept.apply(each)
    if machine.sweep is None or machine.sweep.is_done:
        machine.swept = NaiveBlocks()
        machine.sweep = CopySweep(machine.cache.visible_namespaces(OWNER))
    for listed in machine.sweep.take(1 + machine.steps % 3):
        machine.swept.apply(listed)
    COUNTS["swept"] += machine.sweep.is_done
    for tier in (FIRST, LOWER):
        there = whole_paths(machine.model.in_tier(tier), machine.model.width)
        assert machine.followed.prefixes(tier) == there, "blocks are not what is there"
        if machine.sweep.is_done:
            assert machine.swept.prefixes(tier) == there, "a sweep's blocks are not what is there"
