"""Programs that the cache machine once failed on, though the cache was right."""

from unittest.mock import Mock

import pytest
from hypothesis import strategies as st

from kvstore.core.pool.tier_policy import TierPolicy
from machine.cache_machine import CacheMachine, HashedPages, TwoTiersOfHashedPages
from machine.disk_writes import tell
from machine.state import OWNER

MACHINES = [CacheMachine, HashedPages, TwoTiersOfHashedPages]


@pytest.fixture(params=MACHINES, ids=lambda each: each.__name__)
def machine(request: pytest.FixtureRequest) -> CacheMachine:
    """A machine that watches its first steps."""
    made: CacheMachine = request.param()
    made.begin(policy=TierPolicy())
    made.begin_with_a_disk()
    made.watch_for_a_while(first=0)
    made.what_was_told_is_what_is_there()
    return made


def test_a_page_below_one_that_the_disk_has_not_is_lost_with_it(machine: CacheMachine) -> None:
    """The disk is told of the page that was removed, and drops all that continues it."""
    removed, below = machine.tokens([1]), machine.tokens([1, 1])
    beside = machine.tokens([0, 0])
    machine.model.disk.prefixes = {below, beside}
    machine.model.remove(removed)
    machine.model.disk.forbid(removed)
    machine.cache.evict_prefix(OWNER, machine.namespace_id, removed)
    tell(machine)
    assert machine.model.disk.prefixes == {beside}


def test_pages_that_come_and_go_in_one_step_are_known_to_the_watcher(machine: CacheMachine) -> None:
    """They are published in an extent that retires, which the cache may tell page by page."""
    data = Mock(spec=st.DataObject)
    data.draw.side_effect = [min(machine.model.leases), set()]
    machine.retire_extent(data=data, seldom=True, late=True)
    gone = machine.model.prefixes(machine.tokens([2, 3]))
    assert not set(gone) & machine.model.cached.keys()
    machine.what_was_told_is_what_is_there()
