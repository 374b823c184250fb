"""Inserts that take their slots from another reservation."""

import pytest

from core.core_builders import CoreWorld, make_layout, places
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits, Quotas
from kvstore.core.values.requests import GroupInsert, ReservationRequest, SlotMoves
from kvstore.core.values.slots import SlotState
from kvstore.errors import (
    IdReused,
    InsertExceedsReservation,
    InvalidField,
    KVStoreError,
    ParentDetached,
    ParentNotCovered,
    PinNotFound,
    QuotaExceeded,
    ReservationNotFound,
    Tombstoned,
)

SPARE, TARGET = 50, 60


@pytest.fixture
def world() -> CoreWorld:
    """Returns a world whose worker has six spare slots of eight."""
    world = CoreWorld()
    world.worker.reserve(SPARE, 6)
    return world


def test_slots_move_to_a_new_reservation(world: CoreWorld) -> None:
    """The pages are published in the slots that were named, in the order of their naming."""
    inserted = world.worker.insert(TARGET, "ab", moves=SlotMoves(SPARE, [4, 1]))
    world.laws.check()
    assert (places(inserted.runs), inserted.published_page_count) == ([4, 1], 2)
    world.worker.abort(TARGET, SPARE)
    world.laws.check()
    assert places(world.worker.match("ab", 1).runs) == [4, 1]
    assert world.arena.counts[SlotState.CACHED] == 2
    assert world.arena.free_count == 6


def test_an_insert_is_repeated(world: CoreWorld) -> None:
    """A repeated call moves nothing and answers the same, also after a later chunk."""
    moves = SlotMoves(SPARE, [0, 1])
    first = world.worker.insert(TARGET, "ab", moves=moves)
    assert world.worker.insert(TARGET, "ab", moves=moves) == first
    later = world.worker.insert(TARGET, "cd", 2, moves=SlotMoves(SPARE, [5, 3]))
    assert places(later.runs) == [5, 3]
    assert world.worker.insert(TARGET, "ab", moves=moves) == first
    assert world.worker.lease.unpublished_count() == 2
    world.laws.check()


def test_a_duplicate_stays_reserved(world: CoreWorld) -> None:
    """The page that was first stays, and the other's slot goes back with its new reservation."""
    world.worker.publish("a")
    inserted = world.worker.insert(TARGET, "ab", moves=SlotMoves(SPARE, [0, 1]))
    assert inserted.published_page_count == 1
    world.worker.abort(SPARE)
    assert world.worker.lease.unpublished_count() == 1
    world.worker.abort(TARGET)
    world.laws.check()
    assert world.arena.free_count == 6


def test_slots_that_moved_are_replaced(world: CoreWorld) -> None:
    """A reservation that gave slots away gets as many again, at the same offsets."""
    world.worker.insert(TARGET, "ab", moves=SlotMoves(SPARE, [4, 1]))
    grant = world.worker.reserve(SPARE, 6)
    assert places(grant.runs) == [0, 6, 2, 3, 7, 5]
    assert world.worker.reserve(SPARE, 6) == grant
    world.laws.check()
    world.worker.insert(TARGET, "c", 2, moves=SlotMoves(SPARE, [1]))
    world.laws.check()


def test_a_reservation_with_gaps_ends_before_the_first(world: CoreWorld) -> None:
    """A slot that moved away takes no page in place."""
    world.worker.insert(TARGET, "a", moves=SlotMoves(SPARE, [1]))
    assert places(world.worker.insert(SPARE, "b").runs) == [0]
    with pytest.raises(InsertExceedsReservation):
        world.worker.insert(SPARE, "bc")
    with pytest.raises(InvalidField):
        world.worker.insert(SPARE, "bcdefgh", moves=SlotMoves(TARGET, [0]))
    world.laws.check()


def test_what_was_announced_ends_when_slots_move(world: CoreWorld) -> None:
    """A reservation that gives slots away computes nothing in them."""
    world.worker.abort(SPARE)
    world.worker.acquire("abc", 1, 70)
    assert world.worker.match("abc", 2).in_flight is not None
    world.worker.insert(TARGET, "x", moves=SlotMoves(70, [2]))
    assert world.worker.match("abc", 3).in_flight is None
    world.laws.check()


REFUSED = [
    (SlotMoves(SPARE, [0, 6]), InvalidField),
    (SlotMoves(SPARE, [0]), InvalidField),
    (SlotMoves(SPARE, [0, 1, 2]), InvalidField),
    (SlotMoves(SPARE, [0, 0]), InvalidField),
    (SlotMoves(SPARE), InsertExceedsReservation),
    (SlotMoves(99, [0, 1]), ReservationNotFound),
    (SlotMoves(SPARE, [0, 1], [GroupInsert(0, [0], [2])]), InvalidField),
    (SlotMoves(SPARE, [0, 1], [GroupInsert(1, [0], [1])]), InvalidField),
    (SlotMoves(SPARE, [0, 1], [GroupInsert(1, [0], [2, 3])]), InvalidField),
    (SlotMoves(SPARE, [0, 1], [GroupInsert(1, [0], [2], [1, 2])]), InvalidField),
    (SlotMoves(SPARE, [0, 1], [GroupInsert(1, [0, 0], [2, 3])]), InvalidField),
    (SlotMoves(SPARE, [0, 1], [GroupInsert(1, [0], [2]), GroupInsert(1, [0], [3])]), InvalidField),
    (SlotMoves(SPARE, [0, 1], [GroupInsert(1, [2], [2])]), ParentNotCovered),
]


@pytest.mark.parametrize(("moves", "error"), REFUSED)
def test_a_refused_insert_changes_nothing(
    world: CoreWorld, moves: SlotMoves, error: type[KVStoreError]
) -> None:
    """Neither does a slot move, nor is the reservation made."""
    with pytest.raises(error):
        world.worker.insert(TARGET, "ab", moves=moves)
    assert list(world.worker.lease.reservations) == [SPARE]
    assert world.worker.lease.unpublished_count() == 6
    world.laws.check()


def test_slots_beside_those_that_a_reservation_has_are_refused(world: CoreWorld) -> None:
    """Its own slots would be published in place of those that the caller wrote."""
    world.worker.reserve(TARGET, 2)
    with pytest.raises(InvalidField):
        world.worker.insert(TARGET, "ab", moves=SlotMoves(SPARE, [0, 1]))
    assert world.worker.lease.unpublished_count() == 8
    world.laws.check()
    world.worker.insert(TARGET, "ab")
    late = world.worker.insert(TARGET, "ab", moves=SlotMoves(SPARE, [0, 1]))
    assert late.published_page_count == 2
    assert world.worker.lease.unpublished_count() == 6


def test_a_reservation_gives_no_slots_to_itself(world: CoreWorld) -> None:
    """An insert takes slots from another one."""
    with pytest.raises(InvalidField):
        world.worker.insert(SPARE, "abcdefg", moves=SlotMoves(SPARE, [0]))
    world.laws.check()


def test_an_ended_reservation_is_not_made_again(world: CoreWorld) -> None:
    """A late insert under a tombstone fails, and one whose spare slots were given back."""
    world.worker.abort(TARGET)
    with pytest.raises(Tombstoned):
        world.worker.insert(TARGET, "a", moves=SlotMoves(SPARE, [0]))
    world.worker.abort(SPARE)
    with pytest.raises(Tombstoned):
        world.worker.insert(61, "a", moves=SlotMoves(SPARE, [0]))
    world.laws.check()


def test_a_new_reservation_counts_as_a_hold() -> None:
    """The quota of holds bounds reservations that inserts make too."""
    world = CoreWorld(quotas=Quotas(pins=1))
    world.worker.reserve(SPARE, 2)
    with pytest.raises(QuotaExceeded):
        world.worker.insert(TARGET, "a", moves=SlotMoves(SPARE, [0]))
    world.laws.check()


def test_inserted_pages_of_groups_count_until_their_reservation_ends() -> None:
    """The record of each takes memory, whether it was published or not."""
    world = CoreWorld(limits=Limits(max_held_group_pages=2))
    world.worker.reserve(SPARE, 6)
    two = SlotMoves(SPARE, [0], [GroupInsert(1, [0], [1]), GroupInsert(2, [0], [2])])
    world.worker.insert(TARGET, "a", moves=two)
    assert world.worker.insert(TARGET, "a", moves=two).groups == ((1, (0,)), (2, (0,)))
    more = SlotMoves(SPARE, [], [GroupInsert(3, [0], [3])])
    with pytest.raises(QuotaExceeded):
        world.worker.insert(TARGET, "", moves=more)
    world.laws.check()
    world.worker.abort(TARGET)
    world.worker.insert(61, "a", moves=SlotMoves(SPARE, [4], [GroupInsert(3, [0], [3])]))
    world.laws.check()


def test_group_pages_are_published_under_the_path(world: CoreWorld) -> None:
    """One call publishes pages of the path and of groups, with or without new tokens."""
    groups = [GroupInsert(1, [0, 1], [2, 3], [7, 8]), GroupInsert(2, [1], [4])]
    moves = SlotMoves(SPARE, [0, 1], groups)
    inserted = world.worker.insert(TARGET, "ab", moves=moves)
    assert inserted.groups == ((1, (0, 1)), (2, (1,)))
    world.laws.check()
    assert world.worker.insert(TARGET, "ab", moves=moves) == inserted
    more = SlotMoves(SPARE, groups=[GroupInsert(2, [0, 1], [5, 4])])
    assert world.worker.insert(TARGET, "", moves=more).groups == ((2, (0, 1)),)
    assert world.worker.lease.unpublished_count() == 0
    checksums = world.arena.extents[1].checksums
    assert [checksums[slot] for slot in (2, 3, 4)] == [7, 8, 0]
    match = world.worker.match_groups("ab", 1, {1: 2, 2: 0})
    assert [(each.start_page, places(each.runs)) for each in match.groups] == [
        (0, [2, 3]),
        (0, [5, 4]),
    ]
    world.laws.check()


def test_a_group_page_that_is_cached_stays(world: CoreWorld) -> None:
    """The later page keeps its slot reserved until its reservation ends."""
    groups = [GroupInsert(1, [0], [1])]
    world.worker.insert(TARGET, "a", moves=SlotMoves(SPARE, [0], groups))
    again = world.worker.insert(61, "a", moves=SlotMoves(SPARE, [2], [GroupInsert(1, [0], [3])]))
    assert (again.published_page_count, again.groups) == (0, ((1, ()),))
    world.worker.abort(SPARE)
    assert world.worker.lease.unpublished_count() == 2
    world.laws.check()
    world.worker.abort(61)
    assert world.worker.lease.unpublished_count() == 0
    world.laws.check()


def test_group_pages_hang_on_what_a_base_holds(world: CoreWorld) -> None:
    """Without new tokens the path is that of a pin, as far as it is held and in the index."""
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    moves = SlotMoves(SPARE, groups=[GroupInsert(1, [1], [0])])
    inserted = world.worker.insert(TARGET, "", 2, moves=moves, base_pin_id=1)
    assert inserted.groups == ((1, (1,)),)
    late = SlotMoves(SPARE, groups=[GroupInsert(1, [2], [1])])
    with pytest.raises(ParentNotCovered):
        world.worker.insert(TARGET, "", 2, moves=late, base_pin_id=1)
    with pytest.raises(ParentNotCovered):
        world.worker.insert(61, "", moves=late)
    world.evict_prefix("ab")
    gone = SlotMoves(SPARE, groups=[GroupInsert(2, [1], [1])])
    with pytest.raises(ParentDetached):
        world.worker.insert(TARGET, "", 2, moves=gone, base_pin_id=1)
    kept = SlotMoves(SPARE, groups=[GroupInsert(2, [0], [1])])
    world.worker.insert(TARGET, "", 2, moves=kept, base_pin_id=1)
    world.laws.check()


def test_an_insert_on_another_path_is_refused() -> None:
    """The pages of a reservation are on the path of its first base, which a repeat names again."""
    world = CoreWorld(slots=12)
    world.worker.publish("ab", "xb", "ac")
    world.worker.reserve(SPARE, 3)
    world.worker.match("ab", 1)
    world.worker.match("xb", 2)
    world.worker.match("ac", 3)
    below = SlotMoves(SPARE, [0])
    first = world.worker.insert(TARGET, "d", 2, moves=below, base_pin_id=1)
    assert world.worker.insert(TARGET, "d", 2, moves=below, base_pin_id=1) == first
    assert world.worker.insert(TARGET, "d", 2, moves=below) == first
    for other in (2, 3):
        with pytest.raises(IdReused):
            world.worker.insert(TARGET, "d", 2, moves=below, base_pin_id=other)
    with pytest.raises(PinNotFound):
        world.worker.insert(TARGET, "d", 2, moves=below, base_pin_id=9)
    world.worker.match("abd", 4)
    assert world.worker.insert(TARGET, "d", 2, base_pin_id=4) == first
    world.laws.check()


def test_pages_of_groups_on_another_path_are_refused(world: CoreWorld) -> None:
    """Otherwise the pages of the other path would be answered as published, and be nowhere."""
    world.worker.publish("a", "x")
    world.worker.match("a", 1)
    world.worker.match("x", 2)
    moves = SlotMoves(SPARE, groups=[GroupInsert(1, [0], [0])])
    first = world.worker.insert(TARGET, "", 1, moves=moves, base_pin_id=1)
    again = SlotMoves(SPARE, groups=[GroupInsert(1, [0], [1])])
    for base in ({"base_pin_id": 2}, {}):
        with pytest.raises(IdReused):
            world.worker.insert(TARGET, "", 1, moves=again, **base)
    assert world.worker.insert(TARGET, "", 1, moves=moves, base_pin_id=1) == first
    assert world.worker.lease.unpublished_count() == 5
    world.laws.check()


def test_a_next_token_needs_a_held_path(world: CoreWorld) -> None:
    """An insert of nothing but a next token and a group's page is refused as a whole."""
    moves = SlotMoves(SPARE, groups=[GroupInsert(1, [0], [0])])
    sequence = world.worker.sequence("", 1)._replace(tokens=b"")
    with pytest.raises(ParentNotCovered):
        world.cache.insert(
            world.worker.caller, TARGET, sequence, world.now, next_token=1, moves=moves
        )
    assert world.worker.lease.unpublished_count() == 6


def test_pages_of_a_retiring_extent_are_expelled_at_once(world: CoreWorld) -> None:
    """A group's page published into it leaves at once, and no page goes below a path that left."""
    world.worker.publish("a")
    world.cache.add_extent(1, 9, 4)
    world.worker.map_memory()
    world.worker.reserve(SPARE, 9)
    world.worker.insert(TARGET, "a", moves=SlotMoves(SPARE, [0]))
    world.cache.retire_extent(1, 9)
    groups = [GroupInsert(1, [0], [8]), GroupInsert(2, [0], [1])]
    world.worker.insert(TARGET, "", moves=SlotMoves(SPARE, groups=groups))
    world.laws.check()
    assert [each.runs for each in world.worker.match_groups("a", 1, {2: 1}).groups]
    assert world.worker.match_groups("a", 2, {1: 1}).matched_token_count == 0
    below = [GroupInsert(1, [1], [2])]
    inserted = world.worker.insert(TARGET, "b", 1, moves=SlotMoves(SPARE, [7], below))
    assert inserted.groups == ((1, ()),)
    world.laws.check()
    world.worker.abort(SPARE, TARGET)
    world.laws.check()


def test_pages_stay_while_another_extent_retires(world: CoreWorld) -> None:
    """An insert into a lasting extent removes nothing."""
    world.cache.add_extent(1, 9, 4)
    world.worker.map_memory()
    world.worker.reserve(70, 6)
    world.cache.retire_extent(1, 9)
    world.worker.insert(TARGET, "ab", moves=SlotMoves(SPARE, [0, 1]))
    assert world.worker.match("ab", 1).matched_token_count == 4
    world.laws.check()


def test_a_spare_reservation_of_another_namespace_gives_nothing(world: CoreWorld) -> None:
    """Slots stay within a namespace, even if both are of one arena."""
    other = b"2nd"
    identity = NamespaceIdentity(b"another")
    world.cache.open_namespace(world.worker.caller, identity, make_layout(), other, world.now)
    request = ReservationRequest(70, 0, 1)
    world.cache.reserve(world.worker.caller, other, [request], world.now)
    world.worker.reserve(71, 0)
    with pytest.raises(InvalidField):
        world.worker.insert(71, "a", moves=SlotMoves(70, [0]))
