"""Pages in two tiers: what goes down, what comes back, and that its bytes are the same."""

from collections.abc import Iterable
from collections.abc import Sequence as Items

import pytest

from kvstore.core.invariants.check import Invariants
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.tiers.moves import Move
from kvstore.core.values.requests import MatchOptions, Sequence
from kvstore.core.values.slots import SlotState
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.storage.slot_copies import Ending, Outcome
from stores.store_world import PAGE_TOKENS, World, Worlds
from stores.tiered_store import PAGES, Tiered, tiered

SEQUENCES = 8
# A time limit in seconds that no test comes near.
LIMIT = 30.0


@pytest.mark.parametrize("promote", [False, True])
@pytest.mark.parametrize("write", [WritePolicy.BACK, WritePolicy.THROUGH])
def test_what_tier_1_has_no_room_for_is_in_tier_2(
    worlds: Worlds, write: WritePolicy, *, promote: bool
) -> None:
    """All pages are matched, with their own bytes, though tier 1 has a quarter of the slots."""
    store = tiered(worlds, write=write, promote=promote)
    for number in range(SEQUENCES):
        store.write(number)
    found = {number: store.tiers(number) for number in range(SEQUENCES)}
    assert all(found.values()), "a sequence is gone"
    assert ([2] in found.values()) is not promote
    counters = store.world.cache.counters
    assert counters.demoted_page_count >= PAGES * (SEQUENCES - 2)
    assert counters.evicted_page_count == 0
    assert counters.corrupt_page_count == 0
    assert counters.verified_page_count > 0


def test_what_is_read_in_place_again_is_promoted(worlds: Worlds) -> None:
    """The first match reads tier 2, the second too, and then it is in tier 1."""
    store = tiered(worlds)
    for number in range(4):
        store.write(number)
    assert store.tiers(0) == [2]
    assert store.tiers(0) == [2]
    promoted = store.world.cache.counters.promoted_page_count
    assert 0 < promoted <= PAGES
    assert store.tiers(0)[0] == 1


def test_nothing_is_copied_out_of_wrong_memory(worlds: Worlds) -> None:
    """An inherited extent with other bytes than were written is no source, until it is gone."""
    store = tiered(worlds, write=WritePolicy.THROUGH)
    store.publish(0)
    mover = store.world.store.mover
    mover._prove = set
    mover.step()
    assert store.world.cache.counters.demoted_page_count == 0
    assert sum(each.failed_pages for each in mover.ledger.read().values()) == PAGES
    mover._prove = lambda _: ()
    store.write(1)
    assert store.world.cache.counters.demoted_page_count >= PAGES
    store.world.check()


def test_a_repeated_match_is_answered_whatever_became_of_its_base(worlds: Worlds) -> None:
    """A repeated match asks for no move, also if matches promote."""
    tiered_store = tiered(worlds, promote=True)
    tiered_store.write(0)
    world, caller = tiered_store.world, tiered_store.caller
    whole = tiered_store.sequence(0)
    first_page = TOKEN_BYTES * PAGE_TOKENS
    on = Sequence(whole.tokens[first_page:], position=PAGE_TOKENS, base_pin_id=101)
    for sequence, pin_id in ((whole, 101), (on, 102)):
        found = world.store.match(caller, tiered_store.namespace_id, sequence, MatchOptions(pin_id))
    world.store.release(caller, [101])
    again = world.store.match(caller, tiered_store.namespace_id, on, MatchOptions(102))
    assert again == found


def test_what_is_used_once_is_not_written(worlds: Worlds) -> None:
    """Selective: a sequence that was matched has a copy in tier 2, others go for room."""
    store = tiered(worlds, write=WritePolicy.THROUGH_SELECTIVE)
    store.write(0)
    assert store.tiers(0) == [1]
    for number in range(1, 6):
        store.write(number)
    assert store.world.cache.counters.demoted_page_count == PAGES
    assert store.tiers(0) == [2]
    assert store.tiers(1) == []


def test_a_page_whose_memory_went_is_not_published(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its move is given back, and others of the batch are not."""
    through = TierPolicy(write=WritePolicy.THROUGH)
    store = Tiered(worlds(slots=4, extent_slots=4, lower_slots=20, tier_policy=through))
    for number in range(2):
        store.publish(number)
    memory, gone = store.world.store.mover._memory, 99 << 32
    begin_all = memory.begin_all

    def begin(pairs: Iterable[tuple[int, int]]) -> Ending:
        (source, _), *others = pairs
        return begin_all([(source, gone), *others])

    monkeypatch.setattr(memory, "begin_all", begin)
    store.world.store.mover.step()
    assert store.world.cache.counters.demoted_page_count == PAGES
    store.world.check()


def test_calls_get_in_between_moves(worlds: Worlds, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long sequence goes down by moves of few pages, and each is finished by itself."""
    monkeypatch.setattr("kvstore.core.tiers.moves.MOVE_PAGES", 2)
    through = TierPolicy(write=WritePolicy.THROUGH)
    store = Tiered(worlds(slots=16, extent_slots=16, lower_slots=20, tier_policy=through))
    for number in range(2):
        store.publish(number)
    finish, finished = store.world.cache.finish_moves, []

    def note(moves: Iterable[Move], *, copied: bool = True) -> int:
        some = list(moves)
        finished.append([len(each.transfers) for each in some])
        return finish(some, copied=copied)

    monkeypatch.setattr(store.world.cache, "finish_moves", note)
    store.world.store.mover.step()
    assert store.world.cache.counters.demoted_page_count == 2 * PAGES
    assert finished
    assert all(len(each) == 1 and each[0] <= 2 for each in finished)
    store.world.check()


@pytest.mark.parametrize("failing", ["begin", "end"])
def test_a_batch_is_finished_while_the_next_is_copied(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """Whole moves of about COPY_PAGES pages end, and a later failure leaves them as they are."""
    monkeypatch.setattr("kvstore.service.page_io.memory_mover.COPY_PAGES", PAGES + 1)
    through = TierPolicy(write=WritePolicy.THROUGH)
    store = Tiered(worlds(slots=16, extent_slots=16, lower_slots=20, tier_policy=through))
    for number in range(8):
        store.publish(number)
    cache, mover = store.world.cache, store.world.store.mover
    begun: list[int] = []
    under_way: set[int] = set()
    begin_all, finish = mover._memory.begin_all, cache.finish_moves

    def begin_twice(pairs: Iterable[tuple[int, int]]) -> Ending:
        pairs = list(pairs)
        number = len(begun)
        assert cache.counters.demoted_page_count == sum(begun[: max(number - 1, 0)])
        if (number, failing) == (2, "begin"):
            raise RuntimeError("unforeseen")
        begun.append(len(pairs))
        ending = begin_all(pairs)
        under_way.update(target for _, target in pairs)

        def end() -> list[Outcome]:
            under_way.difference_update(target for _, target in pairs)
            if (number, failing) == (1, "end"):
                raise RuntimeError("unforeseen")
            return ending()

        return end

    def finish_what_is_done(moves: Items[Move], *, copied: bool = True) -> int:
        assert under_way.isdisjoint(each.target for move in moves for each in move.transfers)
        return finish(moves, copied=copied)

    monkeypatch.setattr(mover._memory, "begin_all", begin_twice)
    monkeypatch.setattr(cache, "finish_moves", finish_what_is_done)
    with pytest.raises(RuntimeError, match="unforeseen"):
        mover.step()
    assert begun == [2 * PAGES] * (2 if failing == "begin" else 3)
    assert (under_way, cache.moves) == (set(), {})
    assert cache.counters.demoted_page_count == 2 * PAGES
    Invariants(cache).check()


def test_a_store_of_one_tier_moves_nothing(world: World) -> None:
    """There the mover has nothing to do."""
    world.store.mover.step()
    assert not world.store.mover.due.is_set()


def test_a_copy_that_fails_unforeseen_leaves_no_move_under_way(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised; slots of all moves that were begun are there again, and nothing is held."""
    through = TierPolicy(write=WritePolicy.THROUGH)
    tiered = Tiered(worlds(slots=4, extent_slots=4, lower_slots=20, tier_policy=through))
    memory = tiered.world.store.mover._memory

    def fail(pairs: Iterable[tuple[int, int]]) -> Ending:
        raise RuntimeError(str(pairs))

    with monkeypatch.context() as patch:
        patch.setattr(memory, "begin_all", fail)
        with pytest.raises(RuntimeError):
            tiered.write(0)
    assert not tiered.world.cache.moves
    assert all(each.counts[SlotState.MOVING] == 0 for each in tiered.world.cache.arenas.values())
    tiered.world.check()
