"""Programs that the cache machine once failed on, though the cache was right."""

from unittest.mock import Mock

import pytest
from hypothesis import strategies as st

from kvstore.core.index.radix import subtree
from kvstore.core.index.removal import ALL
from kvstore.core.pool.pages import evict
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.values.requests import MatchOptions, Sequence
from machine.cache_machine import CacheMachine, HashedPages, TwoTiersOfHashedPages
from machine.disk_writes import tell
from machine.extents import retire
from machine.matches import match_and_check
from machine.moves import finish, let_go, plan_once
from machine.namespaces import delete_namespace, remove_in_parts
from machine.state import OWNER
from machine.verification import ask, judge, write_over
from naive.copies import FIRST, LOWER

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
    data.draw.side_effect = [min(machine.model.leases), set(), 1]
    machine.retire_extent(data=data, seldom=True, late=True)
    gone = machine.model.prefixes(machine.tokens([2, 3]))
    assert not set(gone) & machine.model.cached.keys()
    machine.what_was_told_is_what_is_there()


@pytest.fixture
def in_two_tiers() -> TwoTiersOfHashedPages:
    """A machine with a pin of two pages: the first is in both tiers, the last in tier 2 alone."""
    machine = TwoTiersOfHashedPages()
    machine.begin(policy=TierPolicy(low=0.4, high=1.0))
    machine.begin_with_a_disk()
    let_go(machine)
    wanted = machine.cache.state.wanted
    assert wanted is not None
    root = machine.cache.namespaces[machine.namespace_id].index.root
    for _ in range(2):
        wanted.to_lower.update(dict.fromkeys(subtree(root)))
        finish(machine, plan_once(machine, machine.slot_count))
    evict(machine.cache.arenas[FIRST].policy.nominate(1))
    [page] = machine.model.first.keys() - machine.cached_now(FIRST).keys()
    del machine.model.first[page]
    lease = next(iter(machine.model.leases.values()))
    asked, options = Sequence(page + machine.tokens([0])), MatchOptions(machine.fresh())
    path = machine.model.longest(page, len(page))
    match = match_and_check(machine, lease, asked, options, path)
    assert [run.tier for run in match.runs] == [FIRST, LOWER]
    return machine


@pytest.mark.parametrize("most", [1, 3, 50])
def test_a_namespace_that_goes_in_parts_leaves_what_was_handed_out(
    in_two_tiers: TwoTiersOfHashedPages, most: int
) -> None:
    """A hold with its last page in tier 2 keeps no copies there above the part that went first."""
    remove_in_parts(in_two_tiers, most)
    in_two_tiers.index_is_the_model()


@pytest.mark.parametrize("tier", [FIRST, LOWER])
@pytest.mark.parametrize("most", [1, 20, 50, ALL])
def test_an_extent_that_retires_in_parts_leaves_what_was_handed_out(
    in_two_tiers: TwoTiersOfHashedPages, most: int, tier: int
) -> None:
    """As a namespace does. In one part, the copies in tier 2 above the hold's last page stay."""
    [extent_id] = in_two_tiers.model.lasting_in(tier)
    data = Mock(spec=st.DataObject)
    data.draw.side_effect = [set(), most]
    retire(in_two_tiers, data, extent_id)
    in_two_tiers.index_is_the_model()


def test_corrupt_pages_of_a_path_go_at_once(in_two_tiers: TwoTiersOfHashedPages) -> None:
    """They go from the top, so a hold keeps the copies in tier 2 above its last page."""
    lease = next(iter(in_two_tiers.model.leases.values()))
    [pin] = lease.pins.values()
    for _, slot in pin.path:
        write_over(in_two_tiers, slot)
    asked = pin.sequence, MatchOptions(in_two_tiers.fresh())
    expected, match, inspection = ask(in_two_tiers, lease, asked)
    assert inspection is not None
    assert not judge(in_two_tiers, inspection, expected, match, repeat=False)
    in_two_tiers.index_is_the_model()


def test_what_is_read_for_a_deleted_namespace_is_read_again(machine: CacheMachine) -> None:
    """Nobody in the next namespace waits for it."""
    lease = next(iter(machine.model.leases.values()))
    data = Mock(spec=st.DataObject)
    data.draw.side_effect = [lease.lease_id, b"", False, 1] * 2
    machine.load(data=data, pages=[3, 3], meanwhile="later")
    delete_namespace(machine, lease)
    machine.load(data=data, pages=[3, 3], meanwhile="later")
    assert [len(each.targets) for each in machine.reads] == [1, 1]
    machine.finish_loads()
    machine.index_is_the_model()
