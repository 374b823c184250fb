"""A cache that is recovered from its journal: what an answer promised is there."""

from array import array

import pytest

from core.core_builders import ADMIN, NAMESPACE_ID, OWNER, Worker, paged
from journaled.list_memory import Moved, WatchedGenerations, Write
from journaled.snapshot import Snapshot
from journaled.world import JournaledWorld
from kvstore.core.invariants.check import Invariants
from kvstore.core.journal.records import DetachRecord, PagesRecord, RecordKind, decode, encode
from kvstore.core.journal.rows import Table
from kvstore.core.recovery.recover import recover
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.values.requests import MatchOptions, NamedPinRequest
from kvstore.core.values.slots import SlotState
from kvstore.errors import IdReused, LeaseExpired, NotAttached, Tombstoned


@pytest.fixture
def world() -> JournaledWorld:
    """Returns a world of eight slots."""
    return JournaledWorld()


def test_pages_and_pins_are_there(world: JournaledWorld) -> None:
    """A page that was cached is found again, and a pin keeps its pages."""
    world.worker.publish("abc", "abd")
    world.worker.match("abc", 5)
    before = Snapshot(world.cache)
    world.restart()
    assert Snapshot(world.cache).pages == before.pages
    assert Snapshot(world.cache).pins == before.pins
    assert world.shape() == {"ab": {"c": {}, "d": {}}}


def test_a_match_is_answered_again(world: JournaledWorld) -> None:
    """A repeated match gets its pin's answer, and another sequence is refused."""
    world.worker.publish("abc")
    answer = world.worker.match("abc", 5)
    world.restart()
    world.attach(world.worker)
    assert world.worker.match("abc", 5) == answer
    with pytest.raises(IdReused):
        world.worker.match("xyz", 5)


def test_reserved_slots_wait_for_their_process(world: JournaledWorld) -> None:
    """Slots of a reservation are in quarantine until a process attaches, and then go on."""
    world.worker.acquire("abc", 5, 6)
    world.worker.insert(6, "a")
    world.restart()
    assert world.states() == {"CACHED": 1, "FREE": 5, "QUARANTINED": 2}
    assert world.worker.lease.change("ended").quarantined_slot_count == 2
    with pytest.raises(NotAttached):
        world.worker.insert(6, "b", 1)
    world.attach(world.worker)
    assert world.states() == {"CACHED": 1, "FREE": 5, "RESERVED": 2}
    world.worker.insert(6, "bc", 1)
    world.worker.abort(6)
    assert world.states() == {"CACHED": 3, "FREE": 5}
    Invariants(world.cache).check()


def test_an_abort_needs_no_process(world: JournaledWorld) -> None:
    """A reservation can be aborted before a process is back."""
    world.worker.reserve(6, 3)
    world.restart()
    world.worker.abort(6)
    assert world.states() == {"FREE": 8}
    Invariants(world.cache).check()


def test_a_lease_that_nobody_attaches_to_expires(world: JournaledWorld) -> None:
    """Its TTL begins anew. Its slots stay in quarantine while its process may live."""
    world.worker.reserve(6, 3)
    world.restart()
    ttl = world.worker.lease.ttl
    assert world.cache.expire(world.now + ttl - 1) == []
    [change] = world.cache.expire(world.now + ttl)
    assert change.quarantined_slot_count == 3
    assert world.states() == {"FREE": 5, "QUARANTINED": 3}
    Invariants(world.cache).check()
    world.cache.process_died(world.worker.process_id, world.now)
    assert world.states() == {"FREE": 8}


def test_an_expired_lease_stays_expired(world: JournaledWorld) -> None:
    """A lease that an admin revoked does not come back to life."""
    world.worker.reserve(6, 3)
    lease_id = world.worker.caller.lease_id
    world.cache.revoke(world.worker.caller._replace(identity=ADMIN, epoch=None), world.now)
    world.restart()
    assert world.states() == {"FREE": 5, "QUARANTINED": 3}
    with pytest.raises(LeaseExpired):
        world.attach(world.worker)
    assert world.worker.lease.lease_id == lease_id


def test_a_released_id_stays_dead(world: JournaledWorld) -> None:
    """A late match under a released id fails as before, and so does a late reservation."""
    world.worker.publish("a")
    world.worker.match("a", 5)
    world.worker.release(5)
    world.worker.abort(6)
    gone = world.join("second")
    gone.release(9)
    world.cache.revoke(gone.caller, world.now)
    world.restart()
    world.attach(world.worker)
    with pytest.raises(Tombstoned):
        world.worker.match("a", 5)
    with pytest.raises(Tombstoned):
        world.worker.reserve(6, 1)


def test_a_detached_page_keeps_its_holder(world: JournaledWorld) -> None:
    """A page that was removed while it is held is not found, and goes at its last release."""
    world.worker.publish("abc")
    world.worker.match("ab", 5)
    world.evict_prefix("b")
    world.evict_prefix("ab")
    world.worker.publish("abx")
    world.restart()
    assert world.shape() == {"abx": {}}
    assert world.states() == {"CACHED": 3, "DETACHED": 1, "FREE": 4}
    world.worker.release(5)
    assert world.states() == {"CACHED": 3, "FREE": 5}
    Invariants(world.cache).check()


def test_a_deleted_namespace_stays_deleted(world: JournaledWorld) -> None:
    """Its held pages wait for their holders, and nothing of it is found."""
    world.worker.publish("abc")
    world.worker.match("abx", 5)
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    world.restart()
    assert NAMESPACE_ID not in world.cache.namespaces
    assert [each.detached_page_count for each in world.cache.state.leaving] == [2]
    world.worker.release(5)
    assert world.cache.arenas[1].counts[SlotState.FREE] == 8
    Invariants(world.cache).check()


def test_a_retiring_extent_stays_retired(world: JournaledWorld) -> None:
    """An extent that was about to go gives out nothing, and has no page."""
    world.worker.publish("abc")
    world.cache.retire_extent(1, 1)
    world.restart()
    assert world.arena.retiring == {1}
    assert world.arena.free_count == 0


def test_a_named_pin_lives_anew(world: JournaledWorld) -> None:
    """A named pin keeps its pages and its prefix, and its time to live begins anew."""
    world.worker.publish("abc")
    request = NamedPinRequest("system", paged("ab"), 9.0)
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now)
    world.now = 105.0
    world.restart()
    assert world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now) == 4
    [pin] = world.cache.visible_named_pins(OWNER, None)
    assert (pin.due, pin.hold_id) == (114.0, 1)
    other = NamedPinRequest("system", paged("abc"))
    with pytest.raises(IdReused):
        world.cache.pin_prefix(OWNER, NAMESPACE_ID, other, world.now)


def test_an_extent_without_its_memory_is_gone(world: JournaledWorld) -> None:
    """Pages of an extent whose generations are not there are lost, and nothing else is."""
    world.worker.publish("abcd", "efgh")
    world.cache.add_extent(1, 2, 4)
    world.worker.map_memory()
    world.worker.publish("ijkl")
    tables = world.witness.remains.tables()
    del tables[2]
    found = recover(world.witness.remains.written(), tables, world.witness.make, 0.0).cache
    assert set(found.arenas[1].extents) == {1}
    assert found.state.mappings.of(world.worker.process_id) == {1}
    assert all(copy.slot >> 32 == 1 for copy in Snapshot(found).pages.values())
    Invariants(found).check()


def test_a_lost_page_that_is_held_is_refused(world: JournaledWorld) -> None:
    """A state without a page that somebody pinned is not what was written."""
    world.worker.publish("abc")
    world.worker.match("abcx", 5)
    remains = world.witness.remains
    remains.records.clear()
    with pytest.raises(ValueError, match="1 held pages"):
        world.recover()


def test_a_record_may_stand_twice(world: JournaledWorld) -> None:
    """A memory that was cleaned may have a record at both ends, in any order."""
    world.worker.publish("abc", "abd")
    world.worker.acquire("abde", 5, 6)
    before = Snapshot(world.cache)
    remains = world.witness.remains
    remains.records.extend(remains.records[:])
    remains.records.reverse()
    assert Snapshot(world.recover().cache).pages == before.pages


def test_a_page_without_its_parent_is_given_back(world: JournaledWorld) -> None:
    """A page is cached only if its parent is. Another page in its place is none."""
    world.worker.publish("ab")
    [record, *_] = [
        each for each in map(decode, world.witness.remains.records) if isinstance(each, PagesRecord)
    ]
    slots, generations = array("Q", [record.slots[1] + 1]), array("Q", [0])
    for parent_id in (99, record.base_id + 9):
        orphan = record._replace(
            base_id=50, parent_id=parent_id, slots=slots, generations=generations
        )
        world.witness.remains.records.append(encode(orphan))
    again = record._replace(base_id=60, slots=array("Q", [slots[0] + 1]), generations=generations)
    world.witness.remains.records.append(encode(again))
    left = DetachRecord(1, 77, 100)
    world.witness.remains.records.append(encode(left))
    cache = world.recover().cache
    assert cache.arenas[1].counts[SlotState.CACHED] == 2
    Invariants(cache).check()


def test_an_interrupted_recovery_is_begun_anew(world: JournaledWorld) -> None:
    """Recovery only moves generations, so another one comes to the same from wherever it was."""
    world.worker.publish("abc", "abd")
    world.worker.match("abc", 5)
    world.evict_prefix("abc")
    world.worker.acquire("abef", 6, 7)
    remains, make = world.witness.remains, world.witness.make
    writes: list[Write] = []
    tables = {}
    for extent_id, table in remains.tables().items():
        tables[extent_id] = WatchedGenerations(extent_id, len(table), [])
        for index, generation in enumerate(table):
            tables[extent_id][index] = generation
        tables[extent_id].writes = writes
    expected = Snapshot(recover(remains.written(), tables, make, 0.0).cache)
    assert all(isinstance(each, Moved) for each in writes)
    for count in range(len(writes)):
        copied = remains.tables()
        for write in writes[:count]:
            assert isinstance(write, Moved)
            copied[write.extent_id][write.index] = write.generation
        found = Snapshot(recover(remains.written(), copied, make, 0.0).cache)
        assert (found.pages, found.pins) == (expected.pages, expected.pins)
        assert found.reservations == expected.reservations


def test_rows_that_nobody_answered_are_dropped(world: JournaledWorld) -> None:
    """A reservation without a record was not answered. Its row goes as the cache goes on."""
    world.worker.publish("a")
    world.worker.reserve(6, 2)
    remains = world.witness.remains
    remains.records.pop()
    world.restart()
    assert 6 not in world.worker.lease.reservations
    cleared = [each for each in world.witness.memory.writes if getattr(each, "key", None)]
    assert cleared[-1].key == (1, 2, 6)
    assert world.states() == {"CACHED": 1, "FREE": 7}


def test_new_pages_get_new_ids(world: JournaledWorld) -> None:
    """No id comes twice, even if the records of the first pages are gone."""
    world.worker.publish("ab")
    world.restart()
    world.attach(world.worker)
    world.worker.publish("xy")
    records = [
        decode(each.record) for each in world.witness.memory.writes if hasattr(each, "record")
    ]
    ids = [each.base_id for each in records if isinstance(each, PagesRecord) if each.slots]
    assert len(ids) == len(set(ids)) == 2
    assert all(each.kind is RecordKind.INSERT for each in records if isinstance(each, PagesRecord))


def test_a_removal_that_the_disk_has_not_heard_of_is_told() -> None:
    """No page comes back from a disk that was not told of its removal."""
    world = JournaledWorld(has_disk=True)
    world.worker.publish("ab")
    world.evict_prefix("a")
    told = world.cache.take_removed()
    world.cache.finish_removed(told)
    world.evict_prefix("x")
    world.restart()
    assert world.namespace.removing == 1
    [removed] = world.cache.take_removed()
    assert removed.number == 2
    world.cache.finish_removed([removed])
    assert world.namespace.removing == 0
    assert (
        Table.REMOVALS
        not in {getattr(each, "table", None) for each in world.witness.memory.writes[-1:]}
        or world.witness.memory.writes[-1].key == 2
    )


def test_a_deleted_namespace_leaves_the_disk() -> None:
    """Its removal is told even if nobody opens the namespace again."""
    world = JournaledWorld(has_disk=True)
    world.worker.publish("ab")
    digest = world.namespace.digest
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    cache = world.recover().cache
    assert cache.state.disk is not None
    assert cache.state.disk.untold == {digest: 1}
    assert [each.page_digest for each in cache.take_removed()] == [None]


def test_a_loaded_page_is_there() -> None:
    """Pages that a disk read published are found again, with their checksums."""
    world = JournaledWorld(has_disk=True)
    worker = world.worker
    sequence = worker.sequence("ab")
    located = world.cache.locate(worker.caller, NAMESPACE_ID, sequence, MatchOptions(3))
    read = world.cache.begin_read(worker.caller, NAMESPACE_ID, sequence, 2, located)
    assert isinstance(read, DiskRead)
    world.cache.finish_read(read, 2, [7, 8])
    pages = Snapshot(world.recover().cache).pages
    assert sorted(copy.checksum for copy in pages.values()) == [7, 8]


def test_workers_of_two_tenants_stay_apart(world: JournaledWorld) -> None:
    """Leases come back under their tenants and numbers, and a new one gets the next."""
    second = world.join("second")
    world.cache.revoke(second.caller, world.now)
    world.restart()
    third = world.join("third")
    assert isinstance(third, Worker)
    assert third.lease.number == 3
