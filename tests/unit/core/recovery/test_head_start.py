"""A recovery that begins while the cache is at work: it comes to the same, or declines."""

from array import array
from collections.abc import Callable

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, Worker, make_layout, paged
from kvstore.core.invariants.check import Invariants
from kvstore.core.journal.records import PagesRecord, decode, encode
from kvstore.core.journal.rows import HoldKey, HoldRow, IdScope, Table
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.recovery.head_start import Declined, HeadStart
from kvstore.core.recovery.recover import recover
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import MatchOptions, NamedPinRequest, SlotMoves
from recoveries.list_memory import Moment, Remains
from recoveries.snapshot import Snapshot
from recoveries.world import JournaledWorld


@pytest.fixture
def world() -> JournaledWorld:
    """Returns a world of sixteen slots with two prompts, one of them held and then removed."""
    made = JournaledWorld(slots=16, divides_by_token=True)
    made.worker.publish("abcd", "xyz")
    made.worker.match("abcd", 5)
    made.worker.match("xyz", 6)
    made.evict_prefix("abc")
    return made


def begun(world: JournaledWorld, moment: Moment | None = None) -> tuple[HeadStart, int]:
    """Returns a head start from now, or from another moment, and how much it knows."""
    contents, generations, end = moment or world.witness.remains.moment()
    return HeadStart(contents, generations, world.witness.make, 0.0), end


def completed(world: JournaledWorld, start: HeadStart, end: int) -> None:
    """Completes a head start, and compares the cache with that of a recovery from nothing."""
    remains, make = world.witness.remains, world.witness.make
    tables, expected = remains.tables(), remains.tables()
    cold = recover(remains.written(), expected, make, 0.0).cache
    found = start.complete(remains.written(end), tables, make, 0.0).cache
    Invariants(found).check()
    assert vars(Snapshot(found)) == vars(Snapshot(cold))
    assert tables == expected


def declined(world: JournaledWorld, start: HeadStart, end: int) -> str:
    """Returns why a head start cannot be completed. Nothing was written then."""
    remains = world.witness.remains
    tables = remains.tables()
    with pytest.raises(Declined) as raised:
        start.complete(remains.written(end), tables, world.witness.make, 0.0)
    assert tables == remains.tables()
    return str(raised.value)


def busy(worker: Worker) -> None:
    """Uses a world of sixteen slots in each way that a head start follows."""
    worker.publish("abef", "abeg", "klm")
    worker.match("abe", 10)
    worker.acquire("xyzuvw", 11, 12)
    worker.insert(12, "uv", 3, base_pin_id=11)
    worker.release(5)
    worker.world.evict_prefix("xyzu")
    request = NamedPinRequest("system", paged("ab"), 9.0)
    worker.cache.pin_prefix(OWNER, NAMESPACE_ID, request, 100.0)
    worker.publish("nopq", "rst")
    worker.release(6, 10)
    worker.abort(12)


def test_from_each_write_it_comes_to_the_same() -> None:
    """Wherever it began, what it completes is the cache that a recovery from nothing makes."""
    world = JournaledWorld(slots=16, divides_by_token=True)
    world.worker.publish("abcd", "xyz")
    world.worker.match("abcd", 5)
    world.worker.match("xyz", 6)
    busy(world.worker)
    seen, remains, count = Remains(), world.witness.remains, 0
    for write in world.witness.memory.writes:
        seen.add(write)
        if seen.tables().keys() != remains.tables().keys():
            continue
        try:
            completed(world, *begun(world, seen.moment()))
            count += 1
        except Declined:
            continue
    assert count > len(world.witness.memory.writes) // 2


def test_it_follows_what_came_since(world: JournaledWorld) -> None:
    """Evictions, inserts, pins, releases, reservations and removals."""
    start = begun(world)
    assert start[0].page_count == 5
    busy(world.worker)
    completed(world, *start)


def test_a_reservation_keeps_what_it_had_inserted(world: JournaledWorld) -> None:
    """Its insert was read ahead, and it goes on after that."""
    worker = world.worker
    worker.acquire("xyzuvw", 11, 12)
    worker.insert(12, "uv", 3, base_pin_id=11)
    start = begun(world)
    completed(world, *start)
    worker.abort(12)
    completed(world, *begun(world))


def test_a_removed_page_stays_with_its_holds(world: JournaledWorld) -> None:
    """Its pin also holds what remains above, which may be removed later."""
    world.worker.match("xyz", 7)
    world.evict_prefix("xyz")
    start = begun(world)
    world.evict_prefix("a")
    world.worker.release(6)
    world.evict_prefix("x")
    completed(world, *start)


def test_a_removed_source_stays_with_its_pin(world: JournaledWorld) -> None:
    """A source pin on a removed page holds the path above it too."""
    world.worker.publish("kl")
    match = world.cache.match(
        world.worker.caller,
        NAMESPACE_ID,
        world.worker.sequence("km"),
        MatchOptions(9, source_pin_id=8),
        world.now,
    )
    assert match.source is not None
    world.evict_prefix("kl")
    start = begun(world)
    world.evict_prefix("k")
    completed(world, *start)


def test_it_keeps_pages_of_groups() -> None:
    """Held pages of KV cache groups stay, removed or not."""
    world = JournaledWorld(slots=24)
    world.worker.publish_groups("abcd", g1="0011")
    world.worker.publish_groups("xyz", g1="011")
    world.worker.match_groups("abcd", 5, {1: 2})
    world.evict_prefix("abc")
    start = begun(world)
    world.worker.match_groups("xyz", 6, {1: 2})
    world.evict_prefix("x")
    completed(world, *start)


def test_a_page_that_left_again_is_not_used(world: JournaledWorld) -> None:
    """It came and was removed since, and a pin keeps it."""
    start = begun(world)
    world.worker.publish("klm")
    world.worker.match("klm", 8)
    world.evict_prefix("k")
    completed(world, *start)


def test_a_copy_of_the_cleaner_is_no_new_page(world: JournaledWorld) -> None:
    """A record that was copied to the end of the journal has known pages."""
    start = begun(world)
    world.witness.remains.records += map(encode, page_records(world.witness.remains))
    completed(world, *start)


def test_it_waits_for_an_insert_that_is_under_way(world: JournaledWorld) -> None:
    """Pages in moved slots count once the record that they need is written."""
    world.worker.reserve(20, 3)
    first = len(world.witness.memory.writes)
    world.worker.insert(21, "klm", moves=SlotMoves(20, range(3), []))
    reasons = set()
    seen = Remains()
    for number, write in enumerate(world.witness.memory.writes):
        seen.add(write)
        if number >= first:
            start = begun(world, seen.moment())
            try:
                completed(world, *start)
            except Declined as error:
                reasons.add(str(error))
    assert "an insert was completed meanwhile" in reasons


def add_extent(world: JournaledWorld) -> str:
    """Makes the arena grow."""
    world.cache.add_extent(1, 2, 4)
    return "the extents changed"


def open_namespace(world: JournaledWorld) -> str:
    """Opens another namespace."""
    identity = NamespaceIdentity(b"another model")
    world.cache.open_namespace(
        world.worker.caller, identity, make_layout(divides_by_token=True), b"n" * 16, world.now
    )
    return "the namespaces changed"


def delete_namespace(world: JournaledWorld) -> str:
    """Deletes the namespace, of which a page is held."""
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    return "a namespace is deleted"


@pytest.mark.parametrize("change", [add_extent, open_namespace, delete_namespace])
def test_it_declines_other_memory(
    world: JournaledWorld, change: Callable[[JournaledWorld], str]
) -> None:
    """A recovery from nothing decides then."""
    start, end = begun(world)
    reason = change(world)
    assert declined(world, start, end) == reason
    remains = world.witness.remains
    found = recover(remains.written(end), remains.tables(), world.witness.make, 0.0).cache
    assert vars(Snapshot(found)) == vars(Snapshot(world.recover().cache))


def test_it_declines_two_memory_tiers() -> None:
    """Their pages move between slots."""
    world = JournaledWorld(tier_policy=TierPolicy())
    world.worker.publish("ab")
    start = begun(world)
    assert start[0].page_count == 0
    assert declined(world, *start) == "pages move between two memory tiers"


def page_records(remains: Remains) -> list[PagesRecord]:
    """Returns the records of pages."""
    return [each for each in map(decode, remains.records) if isinstance(each, PagesRecord)]


def hold_a_page_above(remains: Remains) -> str:
    """Writes that a pin holds another removed page than before."""
    held = remains.rows[Table.HOLDS]
    [key] = [key for key in held if isinstance(key, HoldKey) and key.hold_id == 5]
    row = held[key]
    assert isinstance(row, HoldRow)
    held[key] = row._replace(page_id=row.page_id - 1)
    return "a removed page is held anew"


def hold_a_lost_page(remains: Remains) -> str:
    """Writes a pin on a page that is nowhere."""
    row = HoldRow(1, int(IdScope.PIN), 77, 1, 999)
    remains.rows[Table.HOLDS][row.key] = row
    return "1 held pages of a namespace are not there"


def evict_a_held_page(remains: Remains) -> str:
    """Moves the generation of a page that a pin holds."""
    record = page_records(remains)[1]
    remains.generations[1][record.slots[-1] & 0xFFFF] += 1
    return "an evicted page is held"


def evict_a_removed_page(remains: Remains) -> str:
    """Moves the generation of a removed page that a pin holds."""
    record = page_records(remains)[0]
    remains.generations[1][record.slots[-1] & 0xFFFF] += 1
    return "a removed page was evicted"


def publish_in_a_taken_slot(remains: Remains) -> str:
    """Writes a page in the slot of another one."""
    record = page_records(remains)[1]
    other = record._replace(base_id=1 << 19, parent_id=0, tokens=paged("rst"))
    remains.records.append(encode(other))
    return "a slot has two pages"


@pytest.mark.parametrize(
    "change",
    [
        hold_a_page_above,
        hold_a_lost_page,
        evict_a_held_page,
        evict_a_removed_page,
        publish_in_a_taken_slot,
    ],
)
def test_it_declines_what_no_cache_does(
    world: JournaledWorld, change: Callable[[Remains], str]
) -> None:
    """A head start that read what does not fit together builds on nothing of it."""
    start = begun(world)
    reason = change(world.witness.remains)
    assert declined(world, *start) == reason


def test_it_declines_a_page_without_a_place(world: JournaledWorld) -> None:
    """A page whose parent was not there may be in the tree of a recovery from nothing."""
    record = page_records(world.witness.remains)[0]
    orphan = record._replace(
        base_id=1 << 19,
        parent_id=1 << 18,
        slots=array("Q", [1 << 32 | 15]),
        generations=array("Q", [0]),
        checksums=array("Q"),
        tokens=paged("r"),
    )
    world.witness.remains.records.append(encode(orphan))
    assert declined(world, *begun(world)) == "a page has no place in the tree"


def test_it_declines_an_older_page(world: JournaledWorld) -> None:
    """Ids are the time: a page that was published before others comes before them."""
    moment = world.witness.remains.moment()
    first = encode(page_records(world.witness.remains)[0])
    records = [each for each in moment.contents.records if each != first]
    contents = moment.contents._replace(records=records)
    start, _ = begun(world, moment._replace(contents=contents))
    assert declined(world, start, 0) == "an older page is new"
