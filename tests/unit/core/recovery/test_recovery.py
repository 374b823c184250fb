"""A cache that is recovered from its journal: what an answer promised is there."""

from array import array

import pytest

from core.core_builders import ADMIN, FILLER, NAMESPACE_ID, OWNER, Worker, make_layout, paged
from core.verify_calls import ask, conclude, publish
from kvstore.core.cache import PrefixCache
from kvstore.core.invariants.check import Invariants
from kvstore.core.journal.records import (
    COPIED,
    NO_PAGE,
    DetachRecord,
    PagesRecord,
    RecordKind,
    decode,
    encode,
)
from kvstore.core.journal.rows import Table
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.recovery.recover import recover
from kvstore.core.recovery.written import Sorted
from kvstore.core.stats import lease_stats
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import (
    GroupInsert,
    Match,
    MatchOptions,
    NamedPinRequest,
    Sequence,
    SlotMoves,
)
from kvstore.core.values.slots import SlotState
from kvstore.errors import IdReused, LeaseExpired, NotAttached, Tombstoned
from recoveries.list_memory import Cleared, Moved, WatchedGenerations, Write
from recoveries.snapshot import Snapshot
from recoveries.world import JournaledWorld


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


def test_a_recovered_pin_answers_no_other_match() -> None:
    """A repeated call gets only what is right for its own tokens, base and options."""
    world = JournaledWorld(slots=24, divides_by_token=True)
    worker, caller = world.worker, world.worker.caller
    worker.publish("abcd", "xy")
    store_end(world, paged("ab"), 44)
    plain = worker.match("abc", 1)
    with_token = world.cache.match(
        caller, NAMESPACE_ID, Sequence(paged("ab")), MatchOptions(2, accept_next_token=True), 1.0
    )
    tail = paged("c")[:4]
    copied = Sequence(paged("ab") + tail + FILLER)
    options = MatchOptions(3, source_pin_id=4)
    with_source = world.cache.match(caller, NAMESPACE_ID, copied, options, world.now)
    assert with_source.source is not None
    worker.match("xyz", 7)
    on_base = worker.match("cd", 8, 2, base_pin_id=1)
    world.cache.open_namespace(
        caller, NamespaceIdentity(b"other"), world.layout, b"other" * 4, world.now
    )
    world.restart()
    world.attach(worker)

    def match(
        sequence: Sequence, options: MatchOptions, namespace_id: bytes = NAMESPACE_ID
    ) -> Match:
        return world.cache.match(caller, namespace_id, sequence, options, world.now)

    assert worker.match("abc", 1) == plain
    assert worker.match("cd", 8, 2, base_pin_id=1) == on_base
    accepts = MatchOptions(2, accept_next_token=True)
    assert match(Sequence(paged("ab")), accepts) == with_token
    assert match(copied, options) == with_source
    others = [
        (Sequence(paged("abc")), MatchOptions(1)),
        (worker.sequence("abx"), MatchOptions(1)),
        (worker.sequence("cd", 2, base_pin_id=7), MatchOptions(8)),
        (worker.sequence("cd", 2), MatchOptions(8)),
        (Sequence(paged("ab")), MatchOptions(2)),
        (Sequence(paged("ab") + FILLER), accepts),
        (Sequence(paged("ab") + FILLER), MatchOptions(3, source_pin_id=4)),
        (Sequence(paged("ab") + FILLER + FILLER), MatchOptions(3)),
        (Sequence(paged("ab") + bytes(4) + FILLER), options),
    ]
    for sequence, other in others:
        with pytest.raises(IdReused):
            match(sequence, other)
    with pytest.raises(IdReused):
        match(worker.sequence("abc"), MatchOptions(1), b"other" * 4)


def test_a_recovered_pin_of_groups_answers_the_same_windows() -> None:
    """Pages of groups are answered to a call that asks for these groups and windows."""
    world = JournaledWorld(slots=16)
    world.worker.publish_groups("abc", g1="101", g2="011")
    answer = world.worker.match_groups("abc", 5, {1: 1, 2: 2})
    world.restart()
    world.attach(world.worker)
    assert world.worker.match_groups("abc", 5, {1: 1, 2: 2}) == answer
    for groups in ({1: 1, 2: 1}, {1: 1}, {2: 2, 1: 1}, {1: 1, 3: 2}):
        with pytest.raises(IdReused):
            world.worker.match_groups("abc", 5, groups)


def test_pages_are_evicted_in_the_order_of_their_publishing(world: JournaledWorld) -> None:
    """The oldest pages go first, and those that a pin held go last."""
    world.worker.publish("ab", "cd", "ef")
    world.worker.match("ab", 5)
    world.worker.match("x", 6)
    world.restart()
    world.attach(world.worker)
    world.worker.release(5)
    world.worker.reserve(7, 4)
    assert world.shape() == {"ab": {}, "ef": {}}
    world.worker.reserve(8, 2)
    assert world.shape() == {"ab": {}}


def test_rows_of_deleted_namespaces_are_cleared(world: JournaledWorld) -> None:
    """A row goes once nothing of its namespace is left, except that of the newest one."""
    caller, rows = world.worker.caller, world.witness.remains.rows[Table.NAMESPACES]

    def open_one(name: bytes) -> bytes:
        identity = NamespaceIdentity(name)
        world.cache.open_namespace(caller, identity, world.layout, name * 16, world.now)
        return name * 16

    world.worker.publish("ab")
    world.worker.match("ab", 5)
    second = open_one(b"2")
    world.worker.reserve(6, 1)
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    world.cache.delete_namespace(OWNER, second)
    assert list(rows) == [1, 2]
    world.worker.release(5)
    third = open_one(b"3")
    assert list(rows) == [1, 3]
    world.worker.abort(6)
    world.restart()
    writes = world.witness.memory.writes
    known = len(writes)
    world.attach(world.worker)
    world.cache.delete_namespace(OWNER, third)
    assert [each.key for each in writes[known:] if isinstance(each, Cleared)] == [1]


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
    told = lease_stats(world.worker.lease, world.now + 3)
    assert (told.reserved_slot_count, told.quarantined_slot_count) == (0, 2)
    assert told.oldest_quarantine_age == 3
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


def test_a_place_may_be_cut_again(world: JournaledWorld) -> None:
    """Pages leave after the same page twice, while they are held, and others follow it."""
    for pin_id in (5, 6):
        world.worker.publish("ab")
        world.worker.match("abx", pin_id)
        world.evict_prefix("ab")
    world.worker.publish("ab")
    world.restart()
    assert world.shape() == {"ab": {}}
    assert world.states() == {"CACHED": 2, "DETACHED": 2, "FREE": 4}


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


def test_an_extent_keeps_its_place(world: JournaledWorld) -> None:
    """Its offset is written when it comes, again when it retires, and is recovered."""
    world.cache.add_extent(1, 2, 4, arena_offset=6 << 20)
    world.cache.retire_extent(1, 2)
    arena = world.recover().cache.arenas[1]
    offsets = {number: each.arena_offset for number, each in arena.extents.items()}
    assert (offsets, arena.retiring) == ({1: 0, 2: 6 << 20}, {2})


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


def test_records_without_a_copy_are_left_out(world: JournaledWorld) -> None:
    """Most records of a ring are of evicted pages, and nothing follows from them."""
    world.worker.publish("ab", "cd")
    world.evict_prefix("a")
    remains = world.witness.remains
    views = [memoryview(each) for each in remains.records]
    found = Sorted(remains.written()._replace(records=views), remains.tables())
    [left] = found.of_namespace[1].pages
    assert left.base_id == 3
    assert found.next_id > 4


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


def test_a_reservation_without_a_record_was_not_answered(world: JournaledWorld) -> None:
    """Slots that were taken for a reservation are FREE if no record has them."""
    world.worker.publish("a")
    world.worker.reserve(6, 2)
    world.witness.remains.records.pop()
    world.restart()
    assert 6 not in world.worker.lease.reservations
    assert world.states() == {"CACHED": 1, "FREE": 7}


def test_a_row_of_a_released_pin_is_dropped(world: JournaledWorld) -> None:
    """A process that ends between the two writes of a release leaves a row. It goes later."""
    world.worker.publish("a")
    world.worker.match("a", 5)
    [row] = world.witness.remains.rows[Table.HOLDS].values()
    world.worker.release(5)
    world.witness.remains.rows[Table.HOLDS][1, 1, 5] = row
    world.restart()
    assert world.worker.lease.pins == {}
    cleared = [each for each in world.witness.memory.writes if getattr(each, "key", None)]
    assert cleared[-1].key == (1, 1, 5)


def test_an_id_may_come_again_after_an_answer_was_withdrawn(world: JournaledWorld) -> None:
    """The end of the first reservation is not that of the second one of the same id."""
    publish(world.worker, "a")
    for letters in ("ab", "ac"):
        _, _, inspection = world.cache.acquire_with_checks(
            world.worker.caller,
            NAMESPACE_ID,
            world.worker.sequence(letters),
            MatchOptions(5),
            reservation_id=6,
            total_page_count=2,
            now=world.now,
            pick=range,
        )
        assert inspection is not None
        if letters == "ab":
            world.cache.withdraw(inspection)
    before = Snapshot(world.cache)
    assert list(before.reservations) == [(1, 6)]
    remains = world.witness.remains
    for _ in range(2):
        assert Snapshot(world.recover().cache).reservations == before.reservations
        remains.records.reverse()
    world.worker.abort(6)
    assert Snapshot(world.recover().cache).reservations == {}


def test_an_id_may_come_again_once_its_tombstone_expired(world: JournaledWorld) -> None:
    """The record of the first end is still there, and is not that of the second reservation."""
    world.worker.reserve(6, 1)
    world.worker.abort(6)
    world.now += world.cache.limits.tombstone_ttl
    world.cache.renew(world.worker.caller, world.now)
    world.cache.expire(world.now)
    world.worker.reserve(6, 2)
    world.restart()
    world.attach(world.worker)
    world.worker.reserve(6, 3)
    assert world.states() == {"FREE": 5, "RESERVED": 3}


def test_an_ended_lease_is_not_granted_again(world: JournaledWorld) -> None:
    """An id whose lease ended stays dead, and so does one that was revoked before its grant."""
    second = world.join("second")
    never = second.caller._replace(lease_id=b"never granted 16")
    world.cache.process_died(second.process_id, world.now)
    world.cache.revoke(never, world.now)
    world.restart()
    for caller in (second.caller, never):
        with pytest.raises(Tombstoned):
            world.cache.grant(caller, ttl=None, display_name="", features=(), now=world.now)
    limits = world.cache.limits
    world.cache.expire(world.now + limits.tombstone_ttl)
    world.cache.grant(second.caller, ttl=None, display_name="", features=(), now=world.now)


def test_a_lease_whose_id_came_again_is_there(world: JournaledWorld) -> None:
    """The record of an end does not end a later lease of the same id."""
    second = world.join("second")
    world.cache.revoke(second.caller, world.now)
    world.now += world.cache.limits.tombstone_ttl
    world.cache.renew(world.worker.caller, world.now)
    world.cache.expire(world.now)
    world.cache.grant(second.caller, ttl=None, display_name="", features=(), now=world.now)
    found = world.recover().cache
    assert [each.number for each in found.table.leases.values()] == [1, 3]
    assert not found.table.tenants[OWNER.tenant].lease_tombstones.until


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
    assert all(each.kind == RecordKind.INSERT for each in records if isinstance(each, PagesRecord))


def test_a_removal_that_the_disk_has_not_heard_of_is_told() -> None:
    """No page comes back from a disk that was not told of its removal."""
    world = JournaledWorld(page_stores=1)
    world.worker.publish("ab")
    world.evict_prefix("a")
    told = world.cache.take_removed()
    world.cache.finish_removed(told)
    world.evict_prefix("x")
    world.restart()
    assert world.namespace.removing == (1,)
    [removed] = world.cache.take_removed()
    assert removed.number == 2
    world.cache.finish_removed([removed])
    assert world.namespace.removing == (0,)
    assert (
        Table.REMOVALS
        not in {getattr(each, "table", None) for each in world.witness.memory.writes[-1:]}
        or world.witness.memory.writes[-1].key == 2
    )


def test_a_removal_is_told_again_unless_every_page_store_heard_of_it() -> None:
    """One that did hears of it again, and what another host removed is heard from there."""
    world = JournaledWorld(page_stores=2)
    world.worker.publish("ab")
    world.evict_prefix("a")
    world.cache.finish_removed(world.cache.take_removed(0), 0)
    world.cache.revise(world.namespace.digest, 1)
    world.restart()
    assert world.namespace.removing == (1, 1)
    before = len(world.witness.memory.writes)
    for number in (1, 0):
        assert len(world.witness.memory.writes) == before
        world.cache.finish_removed(world.cache.take_removed(number), number)
    [cleared] = world.witness.memory.writes[before:]
    assert (cleared.table, cleared.key) == (Table.REMOVALS, 1)


def test_a_deleted_namespace_leaves_the_disk() -> None:
    """Its removal is told even if nobody opens the namespace again."""
    world = JournaledWorld(page_stores=1)
    world.worker.publish("ab")
    digest = world.namespace.digest
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    cache = world.recover().cache
    assert cache.state.disk is not None
    assert cache.state.disk.untold == {digest: (1,)}
    assert [each.page_digest for each in cache.take_removed()] == [None]


def test_a_move_writes_a_record_for_pages_with_consecutive_ids() -> None:
    """Two inserts with another between them have a record each; all copies are found again."""
    policy = TierPolicy(write=WritePolicy.THROUGH)
    world = JournaledWorld(tier_policy=policy)
    world.worker.publish("abc", "xy", "abcde")
    assert world.cache.finish_moves(world.cache.plan_moves(10)) == 7
    records = [decode(each) for each in world.witness.remains.records]
    copies = [each for each in records if isinstance(each, PagesRecord) and each.kind == COPIED]
    ids = sorted((each.parent_id, each.base_id, len(each.slots)) for each in copies)
    assert ids == [(NO_PAGE, 1, 3), (NO_PAGE, 4, 2), (3, 6, 2)]
    assert Snapshot(world.recover().cache).pages == Snapshot(world.cache).pages


def test_a_loaded_page_is_there() -> None:
    """Pages that a disk read published are found again, with their checksums."""
    world = JournaledWorld(page_stores=1)
    worker = world.worker
    sequence = worker.sequence("ab")
    located = world.cache.locate(worker.caller, NAMESPACE_ID, sequence, MatchOptions(3))
    read = world.cache.begin_read(worker.caller, NAMESPACE_ID, sequence, 2, located)
    assert isinstance(read, DiskRead)
    world.cache.finish_read(read, 2, [7, 8])
    pages = Snapshot(world.recover().cache).pages
    assert sorted(copy.checksum for copy in pages.values()) == [7, 8]


def test_pages_loaded_in_runs_are_there() -> None:
    """Each run is found again as soon as it was published, and no slot of a later one is lost."""
    world = JournaledWorld(page_stores=1)
    worker = world.worker
    sequence = worker.sequence("abcd")
    located = world.cache.locate(worker.caller, NAMESPACE_ID, sequence, MatchOptions(3))
    read = world.cache.begin_read(worker.caller, NAMESPACE_ID, sequence, 4, located, run_pages=2)
    assert isinstance(read, DiskRead)
    assert world.cache.publish_run(read, 2, [7, 8])
    assert world.cache.take_run(read, 2) == 2
    cache = world.recover().cache
    assert sorted(copy.checksum for copy in Snapshot(cache).pages.values()) == [7, 8]
    assert sum(each.counts[SlotState.MOVING] for each in cache.arenas.values()) == 0
    world.cache.finish_read(read, 2, [9, 10])
    pages = Snapshot(world.recover().cache).pages
    assert sorted(copy.checksum for copy in pages.values()) == [7, 8, 9, 10]


def test_workers_of_two_tenants_stay_apart(world: JournaledWorld) -> None:
    """Leases come back under their tenants and numbers, and a new one gets the next."""
    second = world.join("second")
    world.cache.revoke(second.caller, world.now)
    world.restart()
    third = world.join("third")
    assert isinstance(third, Worker)
    assert third.lease.number == 3


def store_end(world: JournaledWorld, tokens: bytes, token: int) -> None:
    """Inserts tokens, with their next one, and holds nothing of them."""
    # No id comes twice, and no token does.
    world.worker.reserve(token, 3)
    sequence = Sequence(tokens)
    world.cache.insert(world.worker.caller, token, sequence, world.now, next_token=token)
    world.worker.abort(token)


def ends(cache: PrefixCache) -> dict[tuple[bytes, bytes], int]:
    """Returns the next tokens of a cache."""
    return Snapshot(cache).ends


def test_next_tokens_are_there() -> None:
    """A next token comes back with the page that it was computed on, whole or begun."""
    world = JournaledWorld(divides_by_token=True)
    store_end(world, paged("ab"), 5)
    store_end(world, paged("ab") + FILLER, 6)
    store_end(world, b"", 7)
    expected = {(NAMESPACE_ID, paged("ab")): 5, (NAMESPACE_ID, paged("ab") + FILLER): 6}
    assert ends(world.cache) == expected
    assert ends(world.recover().cache) == expected
    world.evict_prefix("ab")
    store_end(world, paged("a"), 8)
    assert ends(world.recover().cache) == {(NAMESPACE_ID, paged("a")): 8}


def test_forgotten_next_tokens_stay_forgotten() -> None:
    """A token within a corrupt page is forgotten, even if another page begins with its tail."""
    world = JournaledWorld(divides_by_token=True)
    publish(world.worker, "a")
    store_end(world, FILLER, 5)
    publish(world.worker, "b", 901)
    _, inspection = ask(world.worker, "b", 1)
    conclude(world.worker, inspection, "b")
    assert ends(world.cache) == ends(world.recover().cache) == {}
    assert world.shape() == {"a": {}}


def test_a_page_that_nobody_holds_is_superseded_without_a_record_of_its_own() -> None:
    """The record of the fuller page says it."""
    world = JournaledWorld(divides_by_token=True)
    for number, tokens in enumerate((paged("a") + FILLER, paged("ab")), 1):
        world.worker.reserve(number, 2)
        world.cache.insert(world.worker.caller, number, Sequence(tokens), world.now)
        world.worker.abort(number)
    assert world.cache.counters.superseded_page_count == 1
    assert [each[0] for each in world.witness.remains.records].count(RecordKind.DETACH) == 0
    assert Snapshot(world.recover().cache).pages == Snapshot(world.cache).pages


def test_tokens_of_a_page_that_was_superseded_stay_forgotten() -> None:
    """A page that left while it was verified takes the tokens along, if it was corrupt."""
    world = JournaledWorld()
    publish(world.worker, "ab")
    _, inspection = ask(world.worker, "ab", 1)
    world.evict_prefix("ab")
    publish(world.worker, "ab", 901)
    store_end(world, paged("ab"), 9)
    conclude(world.worker, inspection, "b")
    assert ends(world.cache) == ends(world.recover().cache)


def test_copies_in_two_tiers_are_there() -> None:
    """A page keeps its copies in both tiers, or the one that is left."""
    world = JournaledWorld(tier_policy=TierPolicy(WritePolicy.THROUGH))
    publish(world.worker, "abc")
    world.cache.finish_moves(world.cache.plan_moves(8))
    assert len(Snapshot(world.cache).pages) == 6
    world.worker.reserve(6, 7)
    pages = Snapshot(world.cache).pages
    assert {tier for _, tier, _ in pages} == {1, 2}
    world.worker.match("abx", 5)
    assert Snapshot(world.recover().cache).pages == pages
    world.restart()
    world.attach(world.worker)
    assert Snapshot(world.cache).pins[1, 5].tokens == paged("ab")


def test_pages_of_groups_are_there() -> None:
    """Pages of groups are pinned as before, and slots that moved are where they went."""
    world = JournaledWorld(slots=16)
    world.worker.publish_groups("abc", g1="101", g2="011")
    world.worker.publish_groups("abc", g1="111")
    world.worker.match_groups("abc", 5, {1: 1, 2: 2})
    world.worker.reserve(6, 4)
    moves = SlotMoves(6, [0, 1], [GroupInsert(3, [0], [2]), GroupInsert(1, [0], [3])])
    world.worker.insert(7, "ax", moves=moves)
    before = Snapshot(world.cache)
    world.restart()
    world.attach(world.worker)
    after = Snapshot(world.cache)
    assert (after.pins, after.reservations) == (before.pins, before.reservations)
    assert world.worker.insert(7, "ax", moves=moves).published_page_count == 1


def test_a_source_page_is_held() -> None:
    """A page to copy from comes back, even if nothing else matched."""
    world = JournaledWorld(divides_by_token=True)
    world.worker.publish("ab")
    options = MatchOptions(5, source_pin_id=6)
    sequence = Sequence(paged("x"))
    match = world.cache.match(world.worker.caller, NAMESPACE_ID, sequence, options, world.now)
    assert match.source is not None
    before = Snapshot(world.cache)
    world.restart()
    assert Snapshot(world.cache).pins == before.pins
    assert world.worker.lease.pins[6].page_count == 1


def test_a_partial_page_gives_way() -> None:
    """A partial page that is held leaves the index to the fuller one, and no token is lost."""
    world = JournaledWorld(divides_by_token=True)
    store_end(world, FILLER, 5)
    options = MatchOptions(7, source_pin_id=8)
    sequence = Sequence(FILLER + FILLER)
    world.cache.match(world.worker.caller, NAMESPACE_ID, sequence, options, world.now)
    world.worker.publish("a")
    before = Snapshot(world.cache)
    cache = world.recover().cache
    assert Snapshot(cache).pages == before.pages
    assert Snapshot(cache).pins == before.pins
    # The token was computed on the page that left.
    assert (len(before.ends), len(ends(cache))) == (1, 0)


def test_a_reservation_that_grew_goes_on(world: JournaledWorld) -> None:
    """The latest record of a reservation counts, with the inserts after it alone."""
    world.worker.reserve(6, 2)
    world.worker.insert(6, "a")
    world.worker.reserve(6, 4)
    world.worker.insert(6, "b", 1)
    before = Snapshot(world.cache)
    assert Snapshot(world.restart().cache).reservations == before.reservations
    world.attach(world.worker)
    world.worker.insert(6, "cd", 2)
    assert world.shape() == {"abcd": {}}


def test_a_reservation_goes_on_under_its_first_base(world: JournaledWorld) -> None:
    """Later inserts name the pin that the first one continued, which ends before them."""
    world.worker.publish("ab", "x")
    world.worker.match("ab", 5)
    world.worker.match("x", 7)
    world.worker.reserve(6, 3, 2)
    world.worker.insert(6, "c", 2, base_pin_id=5)
    world.restart()
    world.attach(world.worker)
    with pytest.raises(IdReused):
        world.worker.insert(6, "d", 3, base_pin_id=7)
    world.worker.insert(6, "d", 3, base_pin_id=5)
    assert world.shape() == {"abcd": {}, "x": {}}


def test_a_reservation_over_two_tiers_keeps_its_copies() -> None:
    """A reservation whose path lies in tier 2 alone holds it there."""
    world = JournaledWorld(tier_policy=TierPolicy(WritePolicy.THROUGH))
    world.worker.publish("ab")
    world.cache.finish_moves(world.cache.plan_moves(8))
    world.worker.reserve(9, 8)
    world.worker.abort(9)
    world.worker.acquire("abc", 5, 6)
    world.worker.insert(6, "c", 2, base_pin_id=5)
    before = Snapshot(world.cache)
    assert before.reservations[1, 6].tokens == paged("abc")
    assert Snapshot(world.recover().cache).reservations == before.reservations


def test_an_insert_that_was_cut_off_is_held_in_its_tiers() -> None:
    """A process may end after the record of the pages, and before the one of the reservation."""
    world = JournaledWorld(tier_policy=TierPolicy(WritePolicy.THROUGH))
    world.worker.publish("ab")
    world.cache.finish_moves(world.cache.plan_moves(8))
    world.worker.reserve(9, 8)
    world.worker.abort(9)
    world.worker.acquire("abcd", 5, 6)
    world.worker.insert(6, "c", 2, base_pin_id=5)
    world.worker.insert(6, "d", 3)
    world.witness.remains.records.pop()
    found = world.recover().cache
    Invariants(found).check()
    assert Snapshot(found).reservations[1, 6].tokens == paged("abcd")


def test_everything_ends_with_its_lease(world: JournaledWorld) -> None:
    """Nothing of a lease that ended comes back, nor does an extent that was destroyed."""
    second = world.join("second")
    second.acquire("abc", 5, 6)
    second.insert(6, "a")
    second.match("ax", 7)
    world.cache.process_died(second.process_id, world.now)
    request = NamedPinRequest("system", paged("a"))
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now)
    world.cache.unpin_prefix(OWNER, NAMESPACE_ID, "system")
    world.cache.retire_extent(1, 1)
    world.cache.unmapped(world.worker.process_id, [1])
    assert world.cache.remove_extent(1)
    cache = world.recover().cache
    assert [each.number for each in cache.table.leases.values()] == [1]
    assert cache.visible_named_pins(OWNER, None) == []
    assert 1 not in cache.arenas or not cache.arenas[1].extents


def test_a_withdrawn_answer_is_gone(world: JournaledWorld) -> None:
    """The holds of a match that was not answered do not come back."""
    publish(world.worker, "a")
    sequence = world.worker.sequence("ab")
    _, _, inspection = world.cache.acquire_with_checks(
        world.worker.caller,
        NAMESPACE_ID,
        sequence,
        MatchOptions(5),
        reservation_id=6,
        total_page_count=2,
        now=world.now,
        pick=range,
    )
    assert inspection is not None
    world.cache.withdraw(inspection)
    snapshot = Snapshot(world.recover().cache)
    assert (snapshot.pins, snapshot.reservations) == ({}, {})


def test_pages_in_a_retiring_extent_leave_again(world: JournaledWorld) -> None:
    """Pages that are published into an extent that retires are gone at once."""
    world.worker.reserve(6, 2)
    world.cache.retire_extent(1, 1)
    world.worker.insert(6, "ab")
    cache = world.recover().cache
    assert cache.namespaces[NAMESPACE_ID].index.page_count == 0
    Invariants(cache).check()


def test_slots_out_of_order_have_their_generations(world: JournaledWorld) -> None:
    """A record of pages in several runs of slots has the generation of each."""
    world.cache.add_extent(1, 2, 4)
    world.worker.map_memory()
    world.worker.publish("abcdefghij")
    world.evict_prefix("c")
    world.evict_prefix("abc")
    world.worker.publish("abxyz")
    before = Snapshot(world.cache)
    assert Snapshot(world.recover().cache).pages == before.pages


def test_namespaces_have_their_own_pins(world: JournaledWorld) -> None:
    """A named pin is of one namespace, whatever others there are."""
    identity = NamespaceIdentity(b"other")
    caller = world.worker.caller
    world.cache.open_namespace(caller, identity, world.layout, b"other" * 4, world.now)
    world.worker.publish("a")
    request = NamedPinRequest("system", paged("a"))
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now)
    [pin] = world.recover().cache.visible_named_pins(OWNER, None)
    assert pin.namespace.namespace_id == NAMESPACE_ID


def test_ends_without_their_page_are_dropped() -> None:
    """A token of a page that is gone is not stored, nor is anything forgotten where none is."""
    world = JournaledWorld(divides_by_token=True)
    store_end(world, paged("ab") + FILLER, 5)
    store_end(world, FILLER, 7)
    world.cache.evict_prefix(OWNER, NAMESPACE_ID, FILLER)
    publish(world.worker, "c")
    _, inspection = ask(world.worker, "c", 1)
    conclude(world.worker, inspection, "c")
    assert ends(world.cache) == ends(world.recover().cache) == {}
    store_end(world, paged("a"), 6)
    world.worker.reserve(60, 8)
    assert ends(world.cache) == ends(world.recover().cache) == {}


def test_a_new_arena_gets_a_new_id(world: JournaledWorld) -> None:
    """An arena that is made after a recovery takes no other's place."""
    world.worker.publish("a")
    world.restart()
    world.attach(world.worker)
    layout = make_layout(page_bytes=128)
    identity = NamespaceIdentity(b"other")
    caller = world.worker.caller
    other = world.cache.open_namespace(caller, identity, layout, b"other" * 4, world.now)
    assert (other.arena.arena_id, other.number) == (2, 2)
    assert world.arena.counts[SlotState.CACHED] == 1
