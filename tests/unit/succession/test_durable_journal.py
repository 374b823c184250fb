"""A journal over real memory: what was written is there again, and the cleaner loses nothing."""

from array import array

import pytest

from kvstore.core.cache import PrefixCache
from kvstore.core.eviction.policies import LeastRecentlyUsed
from kvstore.core.journal.packing import pack
from kvstore.core.journal.records import (
    NO_PAGE,
    AbortRecord,
    DetachRecord,
    EndRecord,
    LeaseEndedRecord,
    PagesRecord,
    Record,
    RecordKind,
    ReserveRecord,
    decode,
    encode,
)
from kvstore.core.journal.rows import (
    CounterRow,
    HoldKey,
    HoldRow,
    IdScope,
    LeaseRow,
    NamespaceRow,
    Table,
)
from kvstore.core.pool.arena import Arena, ArenaKey
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Identity
from kvstore.core.values.slots import INDEX_BITS, ExtentSlots
from kvstore.ring import (
    JournalDamaged,
    NeverCreated,
    OtherVersion,
    RecordRing,
    WrongMemory,
)
from kvstore.succession.journal import durable_journal
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.succession.journal.store_row import StoreRow

STORE = StoreRow(7, 1, b"key", b"settings")
SIZE = 32 << 10
LAYOUT = PageLayout(2, 64, 1, OpaqueContent(b"layout"))
NAMESPACE = NamespaceRow(1, b"n" * 16, "tenant", NamespaceIdentity(b"model"), LAYOUT, (1,))
PIN, RESERVATION = int(IdScope.PIN), int(IdScope.RESERVATION)
LEASE = 3
LEASE_ROW = LeaseRow(LEASE, "tenant", b"id", b"digest", 30.0, ("a", "b"), "name")


class Memories(dict[str, memoryview]):
    """The memories of a journal, as a holder keeps them."""

    def make(self, name: str, size_bytes: int) -> memoryview:
        """Makes one more."""
        self[name] = memoryview(bytearray(size_bytes))
        return self[name]


class World:
    """A journal, and a cache with an extent of some slots whose generations a test moves."""

    def __init__(self, size_bytes: int = SIZE) -> None:
        self.memories = Memories()
        self.journal = DurableJournal.create(self.memories.make, size_bytes, STORE)
        self.cache = PrefixCache(7, Limits())
        owner = self.cache.table.tenant_of(Identity("tenant"))
        self.arena = Arena(1, ArenaKey("tenant", 64, 1), LeastRecentlyUsed(), owner)
        self.cache.arenas[1] = self.arena
        self.add_extent(5)
        self.journal.follow(self.cache)
        self.journal.put(Table.NAMESPACES, 1, NAMESPACE)
        self.journal.put(Table.LEASES, LEASE, LEASE_ROW)

    def add_extent(self, extent_id: int) -> None:
        """Adds an extent of 64 slots."""
        self.arena.add_extent(ExtentSlots(extent_id, 64))

    def move(self, *indexes: int, extent_id: int = 5) -> None:
        """Moves the generations of some slots, as an eviction does."""
        for index in indexes:
            self.arena.extents[extent_id].generations[index] += 1

    def clean(self) -> None:
        """Cleans every record once."""
        self.journal.clean(1 << 20, above=0)

    def reopen(self) -> DurableJournal:
        """Opens the journal as the next process does."""
        return DurableJournal.open(self.memories)

    def records(self) -> list[Record]:
        """Returns the records that the next process finds."""
        return [decode(each) for each in self.reopen().contents().records]


@pytest.fixture
def world() -> World:
    """Returns an empty world."""
    return World()


def slots(*indexes: int, extent_id: int = 5) -> "array[int]":
    """Returns slots of an extent."""
    return array("Q", [extent_id << INDEX_BITS | index for index in indexes])


def pages(
    *indexes: int,
    base_id: int = 10,
    kind: RecordKind = RecordKind.INSERT,
    reservation_id: int = 0,
    needed_number: int = 0,
    tail_token_count: int = 0,
    extent_id: int = 5,
    generations: int = 0,
    checksums: bool = False,
) -> PagesRecord:
    """Returns a record of pages in some slots, each of two tokens."""
    count = len(indexes)
    size = 8 * count - 4 * bool(tail_token_count)
    return PagesRecord(
        *(int(kind), 1, 1, LEASE if reservation_id else 0, base_id, 4, NO_PAGE, reservation_id),
        *(0, 0, tail_token_count, needed_number),
        slots(*indexes, extent_id=extent_id),
        array("Q", [generations] * count),
        array("Q", range(100, 100 + count)) if checksums else array("Q"),
        bytes(each % 251 for each in range(size)),
    )


def reserve(number: int, reservation_id: int = 9) -> ReserveRecord:
    """Returns a record of a reservation without slots."""
    rest = (array("Q"), array("Q"), b"")
    return ReserveRecord(number, 1, LEASE, reservation_id, NO_PAGE, 0, 0, 0, *rest)


def abort(number: int, reservation_id: int = 9) -> AbortRecord:
    """Returns a record of the end of a reservation."""
    return AbortRecord(
        leaves_tombstone=True, lease=LEASE, reservation_id=reservation_id, number=number
    )


def test_all_that_was_written_is_there(world: World) -> None:
    """Records in order, rows by table and key, tombstones, and the store."""
    journal = world.journal
    written: list[Record] = [pages(1, 2), EndRecord(1, 2, 3, b"tail", None), reserve(4)]
    for each in written:
        journal.append(encode(each))
    lease = LEASE_ROW._replace(display_name="another")
    journal.put(Table.LEASES, LEASE, lease)
    journal.put(Table.COUNTERS, "page ids", CounterRow(1))
    journal.put(Table.COUNTERS, "page ids", CounterRow(1 << 40))
    journal.put(Table.LEASES, 4, lease._replace(number=4))
    journal.clear(Table.LEASES, 4)
    journal.clear(Table.LEASES, 5)
    journal.release(LEASE, 8)
    journal.replace_store(STORE._replace(instance=2))
    opened = world.reopen()
    contents = opened.contents()
    assert [decode(each) for each in contents.records] == written
    rows = {table: dict(found) for table, found in contents.rows.items() if found}
    assert rows == {
        Table.NAMESPACES: {1: NAMESPACE},
        Table.LEASES: {LEASE: lease},
        Table.COUNTERS: {"page ids": CounterRow(1 << 40)},
    }
    assert list(contents.tombstones) == [HoldKey(LEASE, PIN, 8)]
    assert opened.store == STORE._replace(instance=2)
    assert opened.used_bytes == journal.used_bytes < journal.capacity_bytes


HOLDS = [
    HoldRow(LEASE, PIN, 8, 1),
    HoldRow(LEASE, PIN, 8, 1, 77, None, 0, None, 3),
    HoldRow(LEASE, PIN, 8, 1, 77, ((4, 2), (9, 1)), None, 1 << 63, 0),
    HoldRow(LEASE, PIN, 8, 1, 77, ((9, 1),), 5),
    HoldRow(LEASE, PIN, 8, 1, 77, ()),
    HoldRow(LEASE, PIN, 8, 1, 77, ((1, 1), (2, 2), (3, 1))),
    HoldRow(LEASE, PIN, 8, 1, 77, None, None, None, 0, ((1, 0, 0),)),
    HoldRow(LEASE, PIN, 8, 1, 77, None, None, None, 0, ((1, 0, 1),), ((6, 1),)),
]


@pytest.mark.parametrize("row", HOLDS)
def test_a_hold_comes_back_and_ends(world: World, row: HoldRow) -> None:
    """A hold is there with all that it says until it is cleared, in the table or in the ring."""
    world.journal.hold(row)
    assert world.reopen().contents().rows[Table.HOLDS] == {row.key: row}
    world.clean()
    assert world.reopen().contents().rows[Table.HOLDS] == {row.key: row}
    # The next process clears it too.
    world.journal = world.reopen()
    world.journal.clear(Table.HOLDS, row.key)
    assert world.reopen().contents().rows[Table.HOLDS] == {}
    world.journal.clear(Table.HOLDS, row.key)
    assert world.journal.given_up is None


@pytest.mark.parametrize("row", [HOLDS[0], HOLDS[-1]], ids=["in the table", "in the ring"])
def test_a_released_hold_leaves_its_tombstone(world: World, row: HoldRow) -> None:
    """Until its id comes again."""
    world.journal.hold(row)
    world.journal.release(LEASE, row.hold_id)
    contents = world.reopen().contents()
    assert (contents.rows[Table.HOLDS], list(contents.tombstones)) == ({}, [row.key])
    world.journal.hold(row)
    contents = world.reopen().contents()
    assert (contents.rows[Table.HOLDS], list(contents.tombstones)) == ({row.key: row}, [])


def test_a_hold_may_be_put_again(world: World) -> None:
    """The last row of a key counts, wherever the first one was."""
    first = HOLDS[0]
    for each in (first, first._replace(page_id=5), first._replace(page_id=6)):
        world.journal.hold(each)
        world.clean()
        assert world.reopen().contents().rows[Table.HOLDS] == {first.key: each}
    world.journal.clear(Table.HOLDS, first.key)
    assert world.reopen().contents().rows[Table.HOLDS] == {}


def test_holds_beyond_the_table_are_in_the_ring(world: World) -> None:
    """A full table of holds ends nothing."""
    rows = [HoldRow(LEASE, PIN, hold_id, 1, hold_id) for hold_id in range(1, 100)]
    for row in rows:
        world.journal.hold(row)
    assert world.reopen().contents().rows[Table.HOLDS] == {row.key: row for row in rows}
    world.clean()
    for row in rows[::2]:
        world.journal.clear(Table.HOLDS, row.key)
    assert world.reopen().contents().rows[Table.HOLDS] == {row.key: row for row in rows[1::2]}


def test_rows_live_while_they_are_the_last_of_their_key(world: World) -> None:
    """Whatever is cleaned, each key has its last row."""
    for number in range(300):
        world.journal.put(Table.COUNTERS, f"{number % 7}", CounterRow(number))
        if number % 3 == 0:
            world.journal.clear(Table.COUNTERS, f"{(number + 1) % 7}")
        world.journal.clean(5, above=0)
    left = dict(world.journal.contents().rows[Table.COUNTERS])
    assert 3 <= len(left) <= 7
    world.clean()
    world.clean()
    opened = world.reopen()
    assert opened.contents().rows[Table.COUNTERS] == left
    assert opened.store == STORE
    # And nothing else is left: a namespace, the store and the counters.
    assert opened.used_bytes < 1000


def test_pages_live_by_generation(world: World) -> None:
    """A record is kept whole, then as far as its pages are there, and then not at all."""
    world.journal.append(encode(pages(1, 2, 3, 4, checksums=True)))
    world.journal.append(encode(pages(8, base_id=30)))
    world.move(4, 8)
    world.clean()
    [left] = world.records()
    assert isinstance(left, PagesRecord)
    assert left == pages(1, 2, 3, checksums=True)
    world.move(1)
    world.clean()
    [left] = world.records()
    assert isinstance(left, PagesRecord)
    assert (left.base_id, left.parent_id, list(left.slots)) == (11, 10, list(slots(2, 3)))
    assert list(left.checksums) == [101, 102]
    assert left.tokens == bytes(range(8, 24))
    world.move(2, 3)
    world.clean()
    assert world.records() == []


def test_a_partial_page_keeps_its_tokens(world: World) -> None:
    """The last page of a record may be shorter than the others."""
    world.journal.append(encode(pages(1, 2, tail_token_count=1)))
    world.move(1)
    world.clean()
    [left] = world.records()
    assert isinstance(left, PagesRecord)
    assert left.tokens == bytes(range(8, 12))


def test_pages_of_an_extent_that_is_gone_are_dead(world: World) -> None:
    """An extent may also come after others, and its pages live like theirs."""
    world.journal.append(encode(pages(1, extent_id=6)))
    world.clean()
    assert world.records() == []
    world.journal.put(Table.COUNTERS, "any", CounterRow(1))
    world.add_extent(6)
    mixed = pages(1, 2, base_id=40)._replace(slots=slots(1) + slots(2, extent_id=6))
    world.journal.append(encode(mixed))
    world.clean()
    assert world.records() == [mixed]
    world.move(2, extent_id=6)
    world.clean()
    [left] = world.records()
    assert isinstance(left, PagesRecord)
    assert list(left.slots) == list(slots(1))
    world.journal.clear(Table.COUNTERS, "any")
    del world.arena.extents[5]
    world.clean()
    assert world.records() == []


def test_nothing_is_dropped_before_a_cache_is_known(world: World) -> None:
    """A successor keeps all until its cache is recovered. Dead rows may go."""
    world.journal.append(encode(pages(1)))
    world.journal.append(encode(EndRecord(1, 2, 3, b"", 4)))
    world.journal.append(encode(reserve(3)))
    world.move(1)
    opened = world.reopen()
    before = list(opened.contents().records)
    opened.clean(1 << 20, above=0)
    assert list(opened.contents().records) == before
    opened.follow(world.cache)
    opened.clean(1 << 20, above=0)
    assert list(opened.contents().records) == [encode(reserve(3))]


def test_a_reservation_lives_by_its_latest_record(world: World) -> None:
    """Earlier records go, and the last one goes with the reservation, after a restart too."""
    journal = world.journal
    journal.append(encode(reserve(1)))
    journal.append(encode(reserve(2)))
    world.clean()
    assert world.records() == [reserve(2)]
    for _ in range(2):
        journal = world.reopen()
        journal.follow(world.cache)
        journal.clean(1 << 20, above=0)
        assert world.records() == [reserve(2)]
    journal.append(encode(abort(3)))
    journal.clean(1 << 20, above=0)
    assert world.records() == []
    assert list(world.reopen().contents().tombstones) == [HoldKey(LEASE, RESERVATION, 9)]


def test_a_reservation_ends_where_its_record_is(world: World) -> None:
    """One store is its end, which the next process reads as a record, until it is a tombstone."""
    journal = world.journal
    place = journal.append(encode(reserve(2)))
    assert place is not None
    end = journal.end
    assert journal.end_reservation(LEASE, 9, place)
    assert (journal.end, world.records()) == (end, [reserve(2), abort(3)])
    opened = world.reopen()
    # It keeps all of this while it knows no cache.
    for _ in range(2):
        opened.clean(1 << 20, above=0)
        assert world.records() == [reserve(2), abort(3)]
    for each in (journal, opened):
        each.follow(world.cache)
    opened.clean(1 << 20, above=0)
    assert world.records() == []
    assert list(world.reopen().contents().tombstones) == [HoldKey(LEASE, RESERVATION, 9)]


def test_the_end_of_a_reservation_frees_what_it_inserted(world: World) -> None:
    """The cleaner of the process that ended it knows it at once."""
    journal = world.journal
    place = journal.append(encode(reserve(1)))
    journal.append(encode(pages(1, 2, reservation_id=9)))
    journal.append(encode(pages(base_id=12, reservation_id=9)))
    assert place is not None
    assert journal.end_reservation(LEASE, 9, place)
    world.clean()
    assert world.records() == [pages(1, 2)]


def test_a_record_that_moved_is_not_ended(world: World) -> None:
    """Then the end is a record of its own."""
    place = world.journal.append(encode(reserve(1)))
    assert place is not None
    world.clean()
    assert not world.journal.end_reservation(LEASE, 9, place)
    assert world.records() == [reserve(1)]


def test_a_reservation_of_a_lease_that_ended_goes(world: World) -> None:
    """A process may end between the end of a lease and those of its reservations."""
    world.journal.append(encode(reserve(1)))
    world.journal.clear(Table.LEASES, LEASE)
    opened = world.reopen()
    opened.follow(world.cache)
    opened.clean(1 << 20, above=0)
    assert world.records() == []


def test_a_reservation_may_come_again(world: World) -> None:
    """The end of the first one of an id is not that of the second."""
    journal = world.journal
    for record in (
        encode(reserve(1)),
        encode(abort(2)._replace(leaves_tombstone=False)),
        encode(reserve(2)),
    ):
        journal.append(record)
    opened = world.reopen()
    for each in (journal, opened):
        each.follow(world.cache)
        each.clean(1 << 20, above=0)
        assert world.records() == [reserve(2)]
    assert list(world.reopen().contents().tombstones) == []


def test_inserts_of_a_reservation_live_until_it_ends(world: World) -> None:
    """An insert of cached pages alone names no slot, and still says how far it got."""
    journal = world.journal
    journal.append(encode(reserve(1)))
    every = [pages(1, 2, reservation_id=9), pages(base_id=12, reservation_id=9)]
    for each in every:
        journal.append(encode(each))
    world.clean()
    assert world.records() == [reserve(1), *every]
    journal.append(encode(abort(2)))
    world.clean()
    # It is no reservation's any more.
    assert world.records() == [pages(1, 2)]


def test_pages_in_moved_slots_need_the_record_of_their_reservation(world: World) -> None:
    """Once that is written they stand for themselves, whatever becomes of the reservation."""
    journal = world.journal
    late = pages(1, reservation_id=9, needed_number=3)
    journal.append(encode(late))
    world.clean()
    assert world.records() == [late]
    journal.append(encode(reserve(3)))
    world.clean()
    assert world.records() == [pages(1), reserve(3)]
    journal.append(encode(abort(4)))
    world.clean()
    assert world.records() == [pages(1)]


def test_pages_of_a_call_that_was_cut_off_go(world: World) -> None:
    """The next process drops an insert without the record that it needs."""
    world.journal.append(encode(pages(1, reservation_id=9, needed_number=3)))
    world.journal.append(encode(pages(2, reservation_id=9, needed_number=4)))
    world.journal.append(encode(reserve(4)))
    opened = world.reopen()
    opened.follow(world.cache)
    opened.clean(1 << 20, above=0)
    assert world.records() == [pages(2), reserve(4)]
    # Numbers go on after those that were named.
    opened.append(encode(pages(3, reservation_id=9, needed_number=5)))
    opened.clean(1 << 20, above=0)
    assert len(world.records()) == 3


def test_the_end_of_a_lease_lives_as_long_as_its_tombstone(world: World) -> None:
    """It is kept while the lease ends, and for as long as the cache remembers its id."""
    world.journal.append(encode(LeaseEndedRecord("tenant", b"id")))
    world.journal.append(encode(LeaseEndedRecord("another", b"id")))
    world.cache.table.leases["tenant", b"id"] = None  # type: ignore[assignment]
    world.clean()
    assert len(world.records()) == 1
    del world.cache.table.leases["tenant", b"id"]
    owner = world.cache.table.tenant_of(Identity("tenant"))
    world.cache.table.tenants["tenant"] = owner
    tombstones = owner.lease_tombstones
    tombstones.leave(b"id", 1.0)
    world.clean()
    assert len(world.records()) == 1
    del tombstones.until[tombstones.scope, b"id"]
    world.clean()
    assert world.records() == []


def leave_lease_tombstones(world: World, ids: list[bytes]) -> None:
    """Writes that leases ended, as the cache remembers too."""
    owner = world.cache.table.tenant_of(Identity("tenant"))
    world.cache.table.tenants["tenant"] = owner
    for each in ids:
        owner.lease_tombstones.leave(each, 1.0)
        world.journal.append(encode(LeaseEndedRecord("tenant", each)))


def test_the_end_of_a_lease_is_kept_once(world: World) -> None:
    """An unknown id that is ended again and again takes the room of one."""
    leave_lease_tombstones(world, [b"id"] * 2_000)
    world.clean()
    assert world.journal.given_up is None
    assert world.records() == [LeaseEndedRecord("tenant", b"id")]
    world.journal = world.reopen()
    world.journal.follow(world.cache)
    leave_lease_tombstones(world, [b"id"])
    world.clean()
    assert world.records() == [LeaseEndedRecord("tenant", b"id")]


def test_ended_leases_leave_room_for_pages(world: World) -> None:
    """The latest of many are kept, in a part of the ring, and the journal goes on."""
    ids = [number.to_bytes(16, "little") for number in range(4_000)]
    leave_lease_tombstones(world, ids)
    world.clean()
    assert world.journal.given_up is None
    kept = [each.lease_id for each in world.records() if isinstance(each, LeaseEndedRecord)]
    assert kept == ids[-len(kept) :]
    assert len(kept) > 10
    assert world.journal.used_bytes < world.journal.capacity_bytes / 8


def test_a_removal_lives_while_its_page_is_held(world: World) -> None:
    """It goes with the last copy of its page."""
    removal = DetachRecord(1, 10, 20, slots(1, 2), array("Q", [0, 0]))
    world.journal.append(encode(removal))
    world.clean()
    world.move(2)
    world.clean()
    assert world.records() == [removal]
    world.move(1)
    world.clean()
    assert world.records() == []


def test_next_tokens_are_forgotten_in_a_turn(world: World) -> None:
    """The cleaner drops them, whatever they are of."""
    world.journal.append(encode(EndRecord(1, 0, 0, b"", 4)))
    world.clean()
    assert world.records() == []


def test_a_large_insert_is_written_in_parts(world: World) -> None:
    """Its parts say the same. A reservation that is too large ends the journal."""
    indexes = tuple(k % 64 for k in range(400))
    for checksums in (False, True):
        whole = pages(*indexes, reservation_id=9, tail_token_count=1, checksums=checksums)
        whole = whole._replace(offset=2, duplicate_count=3)
        world = World()
        world.journal.append(encode(whole))
        assert world.journal.given_up is None
        parts = [each for each in world.records() if isinstance(each, PagesRecord)]
        assert len(parts) > 2
        joined = parts[0]
        for each in parts[1:]:
            assert (each.parent_id, each.base_id) == (each.base_id - 1, 10 + len(joined.slots))
            assert (each.offset, each.duplicate_count) == (joined.inserted, 0)
            joined = joined._replace(
                slots=joined.slots + each.slots,
                generations=joined.generations + each.generations,
                checksums=joined.checksums + each.checksums,
                tokens=joined.tokens + each.tokens,
                tail_token_count=each.tail_token_count,
            )
        assert joined == whole
    large = reserve(1)._replace(slots=slots(*indexes), generations=slots(*indexes))
    world.journal.append(encode(large._replace(published=bytes(400))))
    assert world.journal.given_up is not None


def test_large_copies_are_written_in_parts(world: World) -> None:
    """Each part continues the one before it, in the same tier."""
    whole = pages(*(k % 64 for k in range(400)), kind=RecordKind.COPY)._replace(tier=2)
    world.journal.append(encode(whole))
    assert world.journal.given_up is None
    parts = [each for each in world.records() if isinstance(each, PagesRecord)]
    assert len(parts) > 2
    assert {(each.kind, each.tier) for each in parts} == {(int(RecordKind.COPY), 2)}
    assert [each.base_id for each in parts[1:]] == [
        each.base_id + len(each.slots) for each in parts[:-1]
    ]
    assert b"".join(each.tokens for each in parts) == whole.tokens


def test_a_journal_that_is_too_small_gives_up(world: World) -> None:
    """No write raises, now or later. What is there cannot be opened."""
    for number in range(1000):
        world.journal.append(encode(pages(number % 64, base_id=number)))
        if world.journal.given_up is not None:
            break
    assert 50 < number < 999
    assert "RingFull" in world.journal.given_up
    used = world.journal.used_bytes
    assert world.journal.append(encode(pages(1))) is None
    assert world.journal.end_reservation(LEASE, 9, 0)
    world.journal.hold(HOLDS[0])
    world.journal.put(Table.COUNTERS, "any", CounterRow(1))
    world.journal.clear(Table.HOLDS, HOLDS[0].key)
    world.journal.release(LEASE, HOLDS[0].hold_id)
    world.journal.replace_store(STORE)
    assert not world.journal.clean(above=0)
    assert world.journal.used_bytes == used
    with pytest.raises(NeverCreated):
        world.reopen()


def test_no_fault_reaches_a_verb(world: World) -> None:
    """Damage that the cleaner finds, and a value that no row takes, end the journal alone."""
    world.journal.append(encode(pages(1)))
    ring = world.memories["journal-ring-0"]
    ring[300] ^= 1
    assert not world.journal.clean(above=0)
    assert "JournalDamaged" in str(world.journal.given_up)
    for write in (
        lambda journal: journal.hold(HOLDS[0]._replace(lease=1 << 40)),
        lambda journal: journal.release(1 << 40, 1),
        lambda journal: journal.put(Table.COUNTERS, object(), CounterRow(1)),
        lambda journal: journal.clear(Table.COUNTERS, object()),
        lambda journal: journal.replace_store(STORE._replace(settings=object())),
    ):
        other = World()
        write(other.journal)
        assert other.journal.given_up is not None


def test_cleaning_stops_where_it_is_of_no_use(world: World) -> None:
    """Below the mark it does nothing, and a slice that frees nothing is the last."""
    assert not world.journal.clean()
    for number in range(60):
        world.journal.append(encode(pages(number)))
    used = world.journal.used_bytes
    assert not world.journal.clean(4, above=0)
    assert world.journal.used_bytes >= used
    world.move(*range(60))
    assert world.journal.clean(4, above=0)
    while world.journal.clean(8, above=0.1):
        assert world.journal.used_bytes < used
    assert world.journal.used_bytes <= 0.1 * world.journal.capacity_bytes


def test_cleaning_goes_on_while_half_is_dead(world: World) -> None:
    """A slice of live records is the last one, unless the ring is nearly full."""
    journal, every = world.journal, pages(*range(4))
    while journal.used_bytes <= 0.8 * journal.capacity_bytes:
        journal.append(encode(every._replace(generations=array("Q", [9] * 4))))
        for number in range(4):
            journal.append(encode(pages(number)))
    # One of five is dead.
    assert journal.clean(10)
    while journal.used_bytes > 0.75 * journal.capacity_bytes:
        journal.clean(10)
    assert not journal.clean(10)
    world.move(*range(4))
    while journal.clean(10):
        pass
    assert journal.used_bytes <= 0.25 * journal.capacity_bytes
    assert not journal.clean(10)


def test_all_that_was_there_is_cleaned(world: World) -> None:
    """Live records in between do not end it, and it takes one turn of the ring."""
    journal = world.journal
    for number in range(60):
        journal.append(encode(pages(number)))
    world.move(*range(30, 60))
    end = journal.end
    slices = 1
    while journal.clean_before(end, 8):
        slices += 1
    assert slices == 8
    assert not journal.clean_before(end)
    found = sorted(each.slots[0] for each in world.records() if isinstance(each, PagesRecord))
    assert found == list(slots(*range(30)))


def test_a_busy_ring_cleans_itself(world: World) -> None:
    """Ten times as many pages as the ring takes, of which few live at a time."""
    journal = world.journal
    for number in range(3_000):
        slot = number % 16
        world.move(slot)
        generation = world.arena.extents[5].generations[slot]
        journal.append(encode(pages(slot, base_id=number, generations=generation)))
    assert journal.given_up is None
    found = {each.base_id for each in world.records() if isinstance(each, PagesRecord)}
    assert found >= set(range(2_984, 3_000))


def test_memories_that_are_not_whole_are_refused(world: World) -> None:
    """A missing memory, one of another journal, another version, and a journal without a store."""
    for name in ("journal-holds", "journal-ring-0"):
        memories = Memories(world.memories)
        del memories[name]
        with pytest.raises(NeverCreated, match=name):
            DurableJournal.open(memories)
    other = World()
    with pytest.raises(WrongMemory):
        DurableJournal.open({**world.memories, "journal-holds": other.memories["journal-holds"]})
    many = Memories(world.memories)
    many["journal-ring-2"] = many["journal-ring-0"]
    with pytest.raises(NeverCreated, match="journal-ring-1"):
        DurableJournal.open(many)


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Records of another version are not read."""
    with monkeypatch.context() as patched:
        patched.setattr(durable_journal, "JOURNAL_VERSION", 99)
        world = World()
    with pytest.raises(OtherVersion, match="version 99"):
        world.reopen()


def test_a_journal_without_its_store_is_refused(world: World) -> None:
    """Its creation was cut off."""
    ring = world.memories["journal-ring-0"] = memoryview(bytearray(4 << 10))
    RecordRing.create([ring], world.journal._ring.identity, bytes)
    with pytest.raises(NeverCreated, match="store"):
        world.reopen()


def test_rows_that_cannot_be_read_are_refused(world: World) -> None:
    """Such as those of a table that this program does not know, or with fields that it lacks."""
    journal = world.journal
    journal._rows.put(journal._ring.append, bytes((Table.LEASES,)) + pack((9,)), pack((9,)))
    with pytest.raises(JournalDamaged, match="rows cannot be read"):
        world.reopen()


@pytest.mark.parametrize("size_bytes", [0, 16 << 10])
def test_too_few_bytes_are_refused(size_bytes: int) -> None:
    """A journal without space for its store is never made."""
    store = STORE._replace(settings=bytes(4 << 10))
    with pytest.raises(ValueError, match=r"at least 16384|too few"):
        DurableJournal.create(Memories().make, size_bytes, store)


def test_a_large_journal_has_several_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are of one size, and found in their order."""
    monkeypatch.setattr("kvstore.succession.journal.journal_layout.MOST_SEGMENT_BYTES", 4 << 10)
    world = World()
    assert len([name for name in world.memories if "ring" in name]) == 8
    assert sum(map(len, world.memories.values())) <= SIZE
    world.journal.append(encode(pages(1)))
    assert world.records() == [pages(1)]
