"""Extents that go back: what becomes of their pages, who waits, when they are gone."""

from contextlib import suppress
from itertools import count
from random import Random

import pytest

from core.core_builders import PAGE_TOKENS, CoreWorld, Worker, paged
from core.pinned_world import pin
from kvstore.core.index.removal import ALL
from kvstore.core.values.event_log import Cause
from kvstore.core.values.requests import Sequence
from kvstore.core.values.slots import SlotState
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.errors import ParentDetached, PoolExhausted, ReservationNotFound


@pytest.fixture
def world() -> CoreWorld:
    """Provides two extents: "abcd" lies in the first, "xyz" and free slots in the second."""
    made = CoreWorld(slots=4)
    write(made.worker, "abcd", 1)
    made.cache.add_extent(1, 2, 4)
    made.worker.map_memory()
    write(made.worker, "xyz", 2)
    return made


def write(worker: Worker, letters: str, number: int) -> None:
    """Publishes a sequence and let go of it."""
    match, _ = worker.acquire(letters, number, number)
    start = match.matched_token_count // PAGE_TOKENS
    base = {"base_pin_id": number} if start else {}
    worker.insert(number, letters[start:], start, **base)
    worker.abort(number)
    worker.release(number)


def retire(world: CoreWorld, extent_id: int) -> tuple[int, int]:
    """Retires an extent: (pages evicted, pages detached)."""
    removed = world.cache.retire_extent(1, extent_id)
    world.laws.check()
    return removed.evicted_page_count, removed.detached_page_count


def unmap(world: CoreWorld, extent_id: int) -> None:
    """The worker says that it unmapped an extent."""
    world.cache.unmapped(world.worker.process_id, [extent_id])


def test_pages_that_nobody_holds_go_at_once(world: CoreWorld) -> None:
    """They leave the index with the extent's first page; other extents' pages stay."""
    assert retire(world, 1) == (4, 0)
    assert world.shape() == {"xyz": {}}
    assert world.cache.emptied_extents() == [1]
    assert world.cache.counters.removed_page_count == 4
    assert world.cache.state.removed_pages == {Cause.RETIRED: 4}


def test_what_continues_a_page_that_goes_goes_too(world: CoreWorld) -> None:
    """A page is cached only if its parent is, whatever extent it lies in."""
    write(world.worker, "abcde", 3)
    assert retire(world, 1) == (5, 0)
    assert world.states() == {"FREE": 5, "CACHED": 3}


def test_what_comes_before_a_page_that_goes_stays(world: CoreWorld) -> None:
    """An edge that goes on in a retiring extent is cut there."""
    write(world.worker, "xyzv", 3)
    world.cache.add_extent(1, 3, 4)
    world.worker.map_memory()
    world.worker.reserve(9, 1)
    write(world.worker, "xyzvw", 4)
    assert retire(world, 3) == (1, 0)
    assert world.shape() == {"abcd": {}, "xyzv": {}}


def test_pages_that_somebody_holds_stay_until_the_last_release(world: CoreWorld) -> None:
    """They are found by nobody any more and recycled for nobody; then the extent is empty."""
    assert world.worker.match("ab", 5).matched_token_count == 4
    assert retire(world, 1) == (2, 2)
    assert world.worker.match("ab", 6).matched_token_count == 0
    assert world.states() == {"FREE": 3, "CACHED": 3, "DETACHED": 2}
    assert world.cache.emptied_extents() == []
    world.worker.release(5)
    assert world.cache.emptied_extents() == [1]
    world.laws.check()


def test_no_slot_of_it_is_handed_out(world: CoreWorld) -> None:
    """Free slots of a retiring extent count for nothing; evicting is for the others' alone."""
    retire(world, 1)
    assert world.arena.free_count == 1
    with pytest.raises(PoolExhausted):
        world.worker.reserve(5, 5)
    grant = world.worker.reserve(5, 4)
    assert {run.extent_id for run in grant.runs} == {2}
    world.laws.check()


def test_a_new_process_is_not_given_it(world: CoreWorld) -> None:
    """It is owed to nobody, and acknowledging it makes it of no use."""
    retire(world, 1)
    other = world.join("second")
    assert world.cache.state.mappings.of(other.process_id) == {2}
    world.cache.acknowledge(other.process_id, [1])
    assert {run.extent_id for run in other.reserve(5, 4).runs} == {2}


def test_reserved_slots_stay_their_holders(world: CoreWorld) -> None:
    """A page published into them is its holder's until the release, and never matches."""
    world.evict_prefix("a")
    world.worker.reserve(5, 3)
    retire(world, 1)
    inserted = world.worker.insert(5, "pq")
    assert inserted.published_page_count == 2
    assert {run.extent_id for run in inserted.runs} == {1}
    assert world.worker.insert(5, "pq") == inserted
    assert world.states() == {"FREE": 2, "CACHED": 3, "RESERVED": 1, "DETACHED": 2}
    world.laws.check()
    with pytest.raises(ParentDetached):
        world.worker.insert(5, "r", 2)
    assert world.worker.match("pq", 6).matched_token_count == 0
    world.worker.abort(5)
    assert world.cache.emptied_extents() == [1]
    world.laws.check()


def test_all_that_is_published_into_it_leaves() -> None:
    """An insert that ends within a page: the whole pages before that leave too."""
    world = CoreWorld(slots=4, divides_by_token=True)
    world.worker.reserve(5, 3)
    retire(world, 1)
    tokens = paged("pqr")[:-TOKEN_BYTES]
    inserted = world.cache.insert(world.worker.caller, 5, Sequence(tokens), world.now)
    assert inserted.published_page_count == 3
    world.laws.check()
    assert world.states() == {"FREE": 1, "DETACHED": 3}
    world.worker.abort(5)
    assert world.cache.emptied_extents() == [1]


def test_quarantined_slots_keep_it(world: CoreWorld) -> None:
    """A lease past its TTL whose process is not proven dead may still write there."""
    world.evict_prefix("a")
    world.worker.reserve(5, 3)
    retire(world, 1)
    world.now += 1000
    world.cache.expire(world.now)
    assert world.states()["QUARANTINED"] == 3
    assert world.cache.emptied_extents() == []
    world.cache.process_died(world.worker.process_id, world.now)
    assert world.cache.remove_extent(1)
    world.laws.check()


def test_it_goes_once_nobody_has_it(world: CoreWorld) -> None:
    """Empty, it waits for everybody who was given it: mapped or not, member or not."""
    other = world.join("second")
    retire(world, 1)
    assert world.cache.extents_to_unmap(other.process_id) == [1]
    assert not world.cache.remove_extent(1)
    unmap(world, 1)
    world.cache.revoke(other.caller, world.now)
    assert not world.cache.remove_extent(1)
    assert world.cache.state.mappings.pids(1) == [1000 + other.process_id]
    world.laws.check()
    world.cache.process_died(other.process_id, world.now)
    assert world.cache.remove_extent(1)
    assert (list(world.arena.extents), world.arena.slot_count) == ([2], 4)
    assert not world.cache.remove_extent(1)
    world.laws.check()


def test_who_was_given_it_and_never_answered_counts(world: CoreWorld) -> None:
    """A handle that is under way may be mapped when it arrives."""
    other = world.join("second")
    world.cache.add_extent(1, 3, 4)
    world.cache.give_extents(other.process_id, [3])
    retire(world, 3)
    assert not world.cache.remove_extent(3)
    world.cache.unmapped(other.process_id, [3])
    assert world.cache.remove_extent(3)


def test_an_extent_in_use_is_not_removed(world: CoreWorld) -> None:
    """Neither one that does not retire, nor one with a slot that is not FREE."""
    unmap(world, 1)
    assert not world.cache.remove_extent(1)
    world.worker.map_memory()
    world.worker.match("ab", 5)
    retire(world, 1)
    unmap(world, 1)
    assert not world.cache.remove_extent(1)


def test_a_revoked_lease_speaks_for_those_that_cannot(world: CoreWorld) -> None:
    """A process without a connection has no way to say more than its lease does."""
    retire(world, 1)
    world.cache.disconnected(world.worker.process_id)
    assert not world.cache.remove_extent(1)
    world.cache.revoke(world.worker.caller, world.now)
    assert world.cache.remove_extent(1)


def test_a_connection_that_ends_after_its_lease_says_that_all_is_unmapped(
    world: CoreWorld,
) -> None:
    """A process keeps it open while it has something mapped; under its lease it says nothing."""
    other = world.join("second")
    retire(world, 1)
    unmap(world, 1)
    world.cache.revoke(other.caller, world.now)
    assert not world.cache.remove_extent(1)
    world.cache.disconnected(other.process_id)
    assert world.cache.remove_extent(1)
    world.laws.check()


def test_the_cheapest_has_least_to_lose(world: CoreWorld) -> None:
    """Fewer pages go first, those that go with them counted, then what was used longest ago."""
    assert world.cache.cheapest_extent(1, [1, 2]) == 2
    write(world.worker, "xyzabcd"[:4], 3)
    assert world.cache.cheapest_extent(1, [1, 2]) == 1
    world.worker.match("abcd", 8)
    world.worker.release(8)
    assert world.cache.cheapest_extent(1, [1, 2]) == 2
    assert world.cache.cheapest_extent(1, [1]) == 1
    assert world.cache.cheapest_extent(1, []) is None


def test_pages_that_leave_during_a_survey_are_no_loss(world: CoreWorld) -> None:
    """Between two parts of it calls may be made, and a node that left is not looked at."""
    survey = world.cache.survey(1, [1, 2])
    assert survey.go_on(1)
    world.evict_prefix("abcd")
    assert not survey.go_on(ALL)
    assert survey.cheapest == 1
    world.laws.check()


def test_an_extent_that_somebody_holds_comes_later(world: CoreWorld) -> None:
    """One that empties at once is better than one with fewer pages that has to be waited for."""
    world.worker.match("xy", 5)
    assert world.cache.cheapest_extent(1, [1, 2]) == 1
    world.worker.release(5)
    world.worker.reserve(6, 1)
    assert world.cache.cheapest_extent(1, [1, 2]) == 1


def test_a_pin_below_holds_the_extent_above() -> None:
    """Pages that go with an extent's count, and a hold on one of them, wherever they lie."""
    world = CoreWorld(slots=2)
    for extent_id, slots, letters in ((2, 2, ["ab"]), (3, 5, ["abc", "abd"]), (4, 1, ["vwxyz"])):
        for number, each in enumerate(letters, start=10 * extent_id):
            write(world.worker, each, number)
        world.cache.add_extent(1, extent_id, slots)
        world.worker.map_memory()
    assert world.cache.cheapest_extent(1, [1, 3]) == 1
    world.worker.match("abc", 5)
    assert world.cache.cheapest_extent(1, [1, 3]) == 3


def test_an_extent_that_goes_on_in_branches_counts_each_page_once() -> None:
    """Pages below one of its pages go with that one, be they its own or others'."""
    world = CoreWorld(slots=4)
    write(world.worker, "abc", 1)
    write(world.worker, "abd", 2)
    world.cache.add_extent(1, 2, 5)
    world.worker.map_memory()
    write(world.worker, "vwxyz", 3)
    assert world.shape() == {"ab": {"c": {}, "d": {}}, "vwxyz": {}}
    assert world.cache.cheapest_extent(1, [1, 2]) == 1


def test_an_extent_under_a_named_pin_is_not_chosen(world: CoreWorld) -> None:
    """An extent under an operator's pin is not taken for another tenant."""
    pin(world, "p", "x")
    assert world.cache.cheapest_extent(1, [1, 2]) == 1
    pin(world, "q", "a")
    assert world.cache.cheapest_extent(1, [1, 2]) is None


def test_an_extent_retires_in_parts_while_others_go_on() -> None:
    """No match hands out its pages meanwhile, and what is published in it goes too."""
    world = CoreWorld(slots=12)
    writer = world.worker
    writer.reserve(50, 4)
    write(writer, "abcdef", 1)
    world.cache.add_extent(1, 2, 30)
    writer.map_memory()
    for number, letters in enumerate(["abcdefgh", "abcdefgi", "abcx", "abcy", "xyz"], start=2):
        write(writer, letters, number)
    writer.match("xy", 60)
    retirement = world.cache.begin_retirement(1, 1)
    rounds = 0
    while retirement.go_on(1):
        world.laws.check()
        match = writer.match("abcdefghq", 100 + rounds)
        assert not match.matched_token_count
        write(writer, "xyzw"[: 3 + rounds % 2], 200 + rounds)
        if rounds == 2:
            writer.insert(50, "pq")
        rounds += 1
    world.laws.check()
    assert rounds > 5
    assert not world.arena.emptying
    assert world.arena.extents[1].states.count(SlotState.CACHED) == 0
    removed = retirement.removed
    assert removed.detached_page_count == 2
    assert removed.evicted_page_count + 2 == world.cache.state.removed_pages[Cause.RETIRED]
    with pytest.raises(ParentDetached):
        writer.insert(50, "rs", 2)
    writer.abort(50)
    assert world.cache.emptied_extents() == [1]
    assert "xyz" in str(world.shape())


class Caller:
    """Calls at random, whose pins are in ``held``."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.world = CoreWorld(slots=16)
        self.world.cache.add_extent(1, 2, 16)
        self.world.worker.map_memory()
        self.held: list[int] = []
        self._numbers = count(1)

    def act(self) -> None:
        """Makes one call."""
        rng, worker, number = self.rng, self.world.worker, next(self._numbers)
        letters = "".join(rng.choice("ab") for _ in range(rng.randint(1, 6)))
        what = rng.randrange(6)
        if what == 0 and self.held:
            worker.release(self.held.pop())
        elif what == 1:
            worker.match(letters + "z", number)
            self.held.append(number)
        elif what == 2:
            self.world.evict_prefix(letters)
        else:
            with suppress(ReservationNotFound):
                # There may be no room.
                write(worker, letters, number)
            worker.release(number)


@pytest.mark.parametrize("seed", range(40))
def test_a_retirement_survives_what_calls_do_to_the_tree(seed: int) -> None:
    """Nodes that were to be looked at are split, merged, evicted and removed between parts."""
    caller = Caller(seed)
    world = caller.world
    for _ in range(30):
        caller.act()
    retirement = world.cache.begin_retirement(1, 1)
    while retirement.go_on(caller.rng.choice([1, 18, 40])):
        world.laws.check()
        caller.act()
    world.laws.check()
    world.worker.release(*caller.held)
    assert world.cache.emptied_extents() == [1]
    assert world.cache.remove_extent(1) is False
    unmap(world, 1)
    assert world.cache.remove_extent(1)
    world.laws.check()
