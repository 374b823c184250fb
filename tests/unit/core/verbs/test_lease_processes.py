"""Processes attached under leases, and the extents that they are owed."""

import pytest

from core.core_builders import EPOCH, OWNER, CoreWorld, make_layout
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import Caller
from kvstore.errors import InvalidField, LeaseExpired, LeaseNotFound, PoolExhausted


def test_a_process_comes_back_under_its_number() -> None:
    """Bound again, a process is connected again and keeps what it mapped."""
    world = CoreWorld()
    process = world.cache.table.processes[world.worker.process_id]
    world.cache.disconnected(process.process_id)
    assert not process.connected
    world.cache.bind(world.worker.caller, process_id=process.process_id, pid=1, uid=1)
    assert process.connected
    assert process.mapped == {1}
    assert list(world.worker.lease.processes.values()) == [process]


def test_a_disconnected_process_still_counts() -> None:
    """A hang-up is not a death: the lease stays attached and keeps what it holds."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    world.cache.disconnected(world.worker.process_id)
    assert world.worker.match("ab", 2).matched_token_count == 4
    assert set(world.worker.lease.pins) == {1, 2}


def test_a_process_number_belongs_to_one_lease() -> None:
    """A number that another lease's process has is refused, and stays where it was."""
    world = CoreWorld()
    other = world.join("other")
    with pytest.raises(InvalidField) as error:
        world.cache.bind(other.caller, process_id=world.worker.process_id, pid=1, uid=1)
    assert error.value.metadata["value"] == str(world.worker.process_id)
    assert set(other.lease.processes) == {other.process_id}


def test_binding_needs_the_secret_and_not_the_epoch() -> None:
    """Attaching is how a process learns the epoch; the lease's secret it has to know."""
    world = CoreWorld()
    caller = world.worker.caller._replace(epoch=None)
    world.cache.bind(caller, process_id=50, pid=1, uid=1)
    assert 50 in world.worker.lease.processes
    with pytest.raises(LeaseNotFound):
        world.cache.bind(caller._replace(secret_digest=b"guess"), process_id=51, pid=1, uid=1)


def test_an_expired_lease_takes_no_more_processes() -> None:
    """Past its TTL a lease can't be attached to."""
    world = CoreWorld()
    world.cache.expire(world.now + 10)
    with pytest.raises(LeaseExpired):
        world.cache.bind(world.worker.caller, process_id=50, pid=1, uid=1)


def test_extents_are_owed_until_acknowledged() -> None:
    """A process is owed every extent of its lease's arenas that it has not mapped."""
    world = CoreWorld()
    process_id = world.worker.process_id
    assert world.cache.extents_owed(process_id) == []
    world.cache.add_extent(1, 2, 4)
    world.cache.add_extent(1, 3, 4)
    assert world.cache.extents_owed(process_id) == [2, 3]
    world.cache.acknowledge(process_id, [3])
    assert world.cache.extents_owed(process_id) == [2]
    world.cache.acknowledge(process_id, [3, 2])
    assert world.cache.extents_owed(process_id) == []


def test_extents_of_all_arenas_are_owed() -> None:
    """A lease with namespaces in two arenas is owed the extents of both."""
    world = CoreWorld()
    identity = NamespaceIdentity(b"larger model")
    layout = make_layout(page_bytes=128)
    world.cache.open_namespace(world.worker.caller, identity, layout, b"other", world.now)
    world.cache.add_extent(2, 9, 4)
    assert world.cache.extents_owed(world.worker.process_id) == [9]


def test_a_lease_without_namespaces_is_owed_nothing() -> None:
    """Extents of arenas that a lease has no namespace in are not its business."""
    world = CoreWorld()
    caller = Caller(OWNER, b"idle", b"secret", EPOCH)
    world.cache.grant(caller, ttl=None, display_name="idle", features=(), now=world.now)
    world.cache.bind(caller, process_id=50, pid=1, uid=1)
    assert world.cache.extents_owed(50) == []
    world.cache.acknowledge(50, [1])
    assert world.cache.table.processes[50].mapped == set()


def test_unknown_extents_are_not_acknowledged() -> None:
    """An extent that no arena of the lease has is ignored."""
    world = CoreWorld()
    world.cache.acknowledge(world.worker.process_id, [77])
    assert world.cache.table.processes[world.worker.process_id].mapped == {1}


def test_an_unknown_process_is_ignored() -> None:
    """News of a process that is gone already changes nothing."""
    world = CoreWorld()
    world.cache.acknowledge(99, [1])
    world.cache.disconnected(99)
    assert world.cache.extents_owed(99) == []
    assert world.cache.process_died(99, world.now) == []


def test_only_the_last_death_ends_a_lease() -> None:
    """While one process of a lease lives the lease does; with the last it ends."""
    world = CoreWorld()
    world.worker.reserve(1, 2)
    world.cache.bind(world.worker.caller, process_id=50, pid=1, uid=1)
    assert world.cache.process_died(50, world.now) == []
    assert world.states() == {"FREE": 6, "RESERVED": 2}
    (change,) = world.cache.process_died(world.worker.process_id, world.now)
    assert change.change == "ended"
    assert world.states() == {"FREE": 8}
    world.laws.check()


def test_a_death_makes_extents_usable() -> None:
    """The others can use the memory that only the dead process had not mapped."""
    world = CoreWorld()
    world.cache.bind(world.worker.caller, process_id=50, pid=1, uid=1)
    assert world.worker.lease.usable_extents(world.arena) == set()
    world.cache.process_died(50, world.now)
    assert world.worker.lease.usable_extents(world.arena) == {1}


def test_what_is_unmapped_is_not_counted_on() -> None:
    """A process that dropped an extent is handed no slot in it."""
    world = CoreWorld()
    world.cache.unmapped(world.worker.process_id, [1, 9])
    with pytest.raises(PoolExhausted):
        world.worker.reserve(2, 1)
    world.cache.unmapped(99, [1])
    world.worker.map_memory()
    world.worker.reserve(2, 1)
