"""Pages of a device that go to tier 2 and come back, beside other operations on them."""

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from threading import Event

import pytest

from device.card import Card, ServerCuda
from kvstore.core.pool.tier_policy import WritePolicy
from kvstore.core.tiers.moves import Move
from kvstore.core.values.requests import MatchOptions, Sequence
from kvstore.core.values.slots import INDEX_BITS, SlotState
from kvstore.core.values.tokens import TOKEN_BYTES
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from kvstore.storage.slot_copies import Ending, Outcome
from stores.store_world import PAGE_TOKENS, Worlds
from stores.tiered_store import PAGES, Tiered, tiered
from wire.own_logs import own_logs

SEQUENCES = 8
# A time limit in seconds that no test comes near.
LIMIT = 30.0


class OnDevice:
    """A store whose tier 1 is a device, with the card that stands in for it."""

    def __init__(self, worlds: Worlds, stack: ExitStack, **policy: object) -> None:
        self.card = Card(4 * GRANULARITY)
        device = stack.enter_context(closing(CudaDevice(0, lambda: ServerCuda(self.card))))
        self.tiered = tiered(worlds, device=device, promote=True, **policy)
        # Before the device's threads end.
        stack.callback(self.tiered.world.close)

    def moving(self) -> int:
        """Returns how many slots wait for a copy."""
        arenas = self.tiered.world.cache.arenas.values()
        return sum(each.counts[SlotState.MOVING] for each in arenas)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Closes what a test opens."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("write", [WritePolicy.BACK, WritePolicy.THROUGH])
def test_pages_go_down_from_a_device_and_come_back(
    worlds: Worlds, stack: ExitStack, monkeypatch: pytest.MonkeyPatch, write: WritePolicy
) -> None:
    """With their own bytes; no move is finished while a copy is under way."""
    store = OnDevice(worlds, stack, write=write)
    world, card = store.tiered.world, store.card
    finish, memory = world.cache.finish_moves, world.store.mover._memory

    def finish_what_is_done(moves: Items[Move], *, copied: bool = True) -> int:
        for each in (each for move in moves for each in move.transfers):
            assert memory.read(each.source) == memory.read(each.target)
        return finish(moves, copied=copied)

    monkeypatch.setattr(world.cache, "finish_moves", finish_what_is_done)
    for number in range(SEQUENCES):
        store.tiered.write(number)
    assert all(store.tiered.tiers(number) == [1] for number in range(SEQUENCES))
    counters = world.cache.counters
    assert counters.demoted_page_count >= PAGES * (SEQUENCES - 2)
    assert counters.promoted_page_count >= PAGES * (SEQUENCES - 2)
    assert (counters.evicted_page_count, counters.corrupt_page_count) == (0, 0)
    # A batch has one wait, whatever it holds.
    moved = counters.demoted_page_count + counters.promoted_page_count
    assert 0 < card.calls.count("wait_for_event") < moved


@dataclass
class Flight:
    """Slots of copies under way. Copies from ``held`` slots continue once ``gate`` is set."""

    sources: set[int] = field(default_factory=set)
    targets: set[int] = field(default_factory=set)
    held: set[int] = field(default_factory=set)
    gate: Event = field(default_factory=Event)
    begun: Event = field(default_factory=Event)


def watch(store: Tiered, monkeypatch: pytest.MonkeyPatch) -> Flight:
    """Watches the store's copies: none writes a slot that another one reads or writes."""
    flight, memory = Flight(), store.world.store.mover._memory
    begin_all, extent = memory.begin_all, next(iter(store.world.arenas._extents))

    def begin(pairs: Iterable[tuple[int, int]]) -> Ending:
        pairs = list(pairs)
        sources, targets = ({pair[end] for pair in pairs} for end in (0, 1))
        assert targets.isdisjoint(flight.sources | flight.targets)
        assert sources.isdisjoint(flight.targets)
        flight.sources |= sources
        flight.targets |= targets
        going_down = any(each >> INDEX_BITS == extent for each in sources)
        ending = begin_all(pairs)
        if going_down:
            flight.held |= sources
            flight.begun.set()

        def end() -> list[Outcome]:
            if going_down:
                assert flight.gate.wait(LIMIT)
            outcomes = ending()
            flight.sources -= sources
            flight.targets -= targets
            return outcomes

        return end

    monkeypatch.setattr(memory, "begin_all", begin)
    return flight


def test_a_slot_that_is_read_is_given_to_nobody(
    worlds: Worlds, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page's slot stays occupied until its copy ends, even if an operator removes the page."""
    # Directions have their own streams, so only this orders a read before the next write.
    store = OnDevice(worlds, stack, write=WritePolicy.THROUGH).tiered
    for number in range(2):
        store.publish(number)
    flight, caller, keep = watch(store, monkeypatch), store.caller, store.world.store
    with ThreadPoolExecutor(1) as pool:
        going = pool.submit(keep.mover.step)
        try:
            assert flight.begun.wait(LIMIT)
            assert len(flight.held) == 2 * PAGES, "all of tier 1 is read"
            for number in range(2):
                tokens = store.sequence(number).tokens[: PAGES * PAGE_TOKENS * TOKEN_BYTES]
                keep.evict_prefix(caller.identity, store.namespace_id, tokens)
            asked = (caller, store.namespace_id, store.sequence(2), MatchOptions(5001))
            _, grant = keep.acquire(*asked, reservation_id=5002, total_page_count=PAGES)
            assert grant is None
        finally:
            flight.gate.set()
        going.result(LIMIT)
    store.world.check()
    store.write(2)
    assert store.tiers(2) == [1]


def test_a_match_s_promotion_does_not_wait_for_a_demotion(
    worlds: Worlds, stack: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The match is answered while pages on their way down are stuck, and uses other slots."""
    store = OnDevice(worlds, stack, write=WritePolicy.THROUGH).tiered
    for number in range(3):
        store.write(number)
    store.publish(3)
    flight = watch(store, monkeypatch)
    with ThreadPoolExecutor(2) as pool:
        going = pool.submit(store.world.store.mover.step)
        try:
            assert flight.begun.wait(LIMIT)
            options = MatchOptions(5001)
            asked = (store.caller, store.namespace_id, store.sequence(0), options)
            match = pool.submit(store.world.store.match, *asked).result(LIMIT)
            assert [run.tier for run in match.runs] == [1]
            assert not going.done()
        finally:
            flight.gate.set()
        going.result(LIMIT)
    store.world.check()


def test_a_source_page_comes_up_onto_the_device(worlds: Worlds, stack: ExitStack) -> None:
    """For workers that get no pages of tier 2: the whole page in which a sequence diverges."""
    store = OnDevice(worlds, stack, in_place=False)
    world, tiered = store.tiered.world, store.tiered
    for number in range(SEQUENCES):
        tiered.write(number)
    asked = tiered.sequence(0).tokens
    parting = Sequence(asked[: -2 * TOKEN_BYTES] + bytes(2 * TOKEN_BYTES))
    match = world.store.match(tiered.caller, tiered.namespace_id, parting, MatchOptions(1, 2))
    assert match.source is not None
    pages = [*match.runs, match.source.page]
    slots = [run.extent_id << 32 | index for run in pages for index in run.indexes]
    assert [run.tier for run in pages] == [1, 1]
    assert [world.arenas.read(slot) for slot in slots] == [tiered.content(0, k) for k in (0, 1)]
    assert match.source.valid_token_count == PAGE_TOKENS - 1


@pytest.mark.parametrize("call", ["begin_read", "wait_for_event"])
def test_a_device_that_fails_is_left_until_the_next_time(
    worlds: Worlds, stack: ExitStack, call: str
) -> None:
    """No slot stays in a move; the mover tries once each time, logs the reason, and continues."""
    store = OnDevice(worlds, stack)
    world, card, mover = store.tiered.world, store.card, store.tiered.world.store.mover
    card.batches = False
    for number in range(2):
        store.tiered.publish(number)
    card.calls.clear()
    card.fail = call
    with own_logs() as lines:
        for tries in (1, 2):
            mover.due.clear()
            mover.step()
            assert (card.calls.count("wait_for_event"), mover.due.is_set()) == (tries, False)
            assert (store.moving(), world.cache.moves) == (0, {})
    assert {line["event"] for line in lines} == {"move_failed"}
    assert world.cache.counters.demoted_page_count == 0
    card.fail = ""
    mover.step()
    assert world.cache.counters.demoted_page_count > 0
    for number in range(2, SEQUENCES):
        store.tiered.write(number)
    assert all(store.tiered.tiers(number) == [1] for number in range(SEQUENCES))
