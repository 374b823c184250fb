"""Slots that are reserved ahead: enough, each given back once, none of an ended session."""

from dataclasses import dataclass, field

import pytest

from kvstore_client import PageRef
from kvstore_vllm.offload.reserve import (
    AFTER_REFUSAL,
    LEAST_SLOTS,
    Reserve,
    SpareBatch,
)
from wire.told_answers import ToldAnswers

MOST = 64
WAIT = 0.002


@dataclass
class Slots:
    """A batch of some slots of one extent."""

    count: int
    usable: bool = True
    aborted: bool = False

    def pages(self) -> list[tuple[int, PageRef]]:
        """Returns as many places."""
        return [(offset, PageRef(7, 100 + offset)) for offset in range(self.count)]

    def abort(self) -> None:
        """Notes that it was aborted, which happens once."""
        assert not self.aborted
        self.aborted = True


@dataclass
class Store:
    """A store that grants what is asked for, or nothing."""

    full: bool = False
    batches: list[Slots] = field(default_factory=list)

    def fill(self, count: int) -> SpareBatch | None:
        """Grants a batch."""
        if self.full:
            return None
        self.batches.append(Slots(count))
        return self.batches[-1]


@dataclass
class World:
    """A reserve, its store, and a clock that only tests move."""

    store: Store = field(default_factory=Store)
    answers: ToldAnswers = field(default_factory=ToldAnswers)
    now: float = 0.0

    def __post_init__(self) -> None:
        self.reserve = Reserve(self.store.fill, self.answers, MOST, WAIT, self._clock)

    def _clock(self) -> float:
        # Each look at the clock takes a while, so that waits end.
        self.now += 0.0001
        return self.now

    def fill(self, count: int) -> None:
        """Reserves as many slots, and waits for them."""
        self.reserve.want(count)
        self.answers.answer_all()


@pytest.fixture
def world() -> World:
    """Provides an empty reserve."""
    return World()


def test_slots_are_there_once_the_store_answered(world: World) -> None:
    """A dry reserve gives nothing and asks; each slot is given to one caller."""
    assert world.reserve.take(3) == []
    assert world.reserve.is_coming
    world.answers.answer_all()
    assert not world.reserve.is_coming
    assert [batch.count for batch in world.store.batches] == [LEAST_SLOTS]
    first, second = world.reserve.take(3), world.reserve.take(LEAST_SLOTS)
    assert (len(first), len(second)) == (3, LEAST_SLOTS - 3)
    assert not {each.offset for each in first} & {each.offset for each in second}


def test_no_more_than_the_bound_is_reserved(world: World) -> None:
    """Whatever requests want, the free slots are bounded, and one call is under way at a time."""
    world.reserve.want(10 * MOST)
    world.reserve.want(10 * MOST)
    world.answers.answer_all()
    world.fill(10 * MOST)
    assert [batch.count for batch in world.store.batches] == [MOST]


def test_a_full_store_is_not_asked_at_each_step(world: World) -> None:
    """After a refusal the store is asked again only after a while."""
    world.store.full = True
    world.fill(4)
    world.store.full = False
    world.reserve.want(4)
    assert not world.reserve.is_coming
    world.now += AFTER_REFUSAL
    world.reserve.want(4)
    assert world.reserve.is_coming


def test_a_store_that_hangs_is_waited_for_once(world: World) -> None:
    """The requests of a step wait together as long as one; the next answer is waited for again."""
    begin = world.now
    for _ in range(100):
        assert world.reserve.take(1) == []
    assert world.now - begin < 2 * WAIT
    world.answers.answer_all()
    world.reserve.take(LEAST_SLOTS)
    begin = world.now
    assert world.reserve.take(1) == []
    assert world.now - begin >= WAIT


class PromptAnswers(ToldAnswers):
    """Answers that come during a wait."""

    def wait(self, timeout: float) -> None:
        """Answers, and notes the bound of the wait."""
        self.waits.append(timeout)
        self.answer()


def test_a_step_waits_for_slots_as_long_as_it_may(world: World) -> None:
    """Without a wait a step never waits; with one, slots that come meanwhile are taken."""
    answers = PromptAnswers()
    hurried = Reserve(world.store.fill, answers, MOST, 0.0, world._clock)
    assert hurried.take(1) == []
    assert answers.waits == []
    answers.answer_all()
    patient = Reserve(world.store.fill, answers, MOST, 0.1, world._clock)
    assert len(patient.take(1)) == 1
    assert 0.09 < answers.waits[0] <= 0.1


def test_free_slots_of_an_ended_session_are_dropped_unasked(world: World) -> None:
    """The client attaches again only after its earlier session has no slots, used or not."""
    world.fill(LEAST_SLOTS)
    [old] = world.store.batches
    taken = world.reserve.take(1)
    assert not world.reserve.drop_ended()
    old.usable = False
    assert world.reserve.drop_ended()
    world.reserve.give_back(taken)
    assert old.aborted
    assert not world.reserve.drop_ended()


def test_a_batch_ends_with_its_last_slot(world: World) -> None:
    """Used slots do not come back; given ones do; the batch is aborted once none is left."""
    world.fill(LEAST_SLOTS)
    [batch] = world.store.batches
    taken = world.reserve.take(LEAST_SLOTS)
    world.reserve.used(taken[:-1])
    world.reserve.give_back(taken[-1:])
    assert not batch.aborted
    assert world.reserve.take(2) == taken[-1:]
    world.reserve.used(taken[-1:])
    assert batch.aborted


def test_closing_gives_back_free_slots_and_later_the_taken_ones(world: World) -> None:
    """A closed reserve ends when the last copy into its slots ended."""
    world.fill(LEAST_SLOTS)
    [batch] = world.store.batches
    taken = world.reserve.take(2)
    world.reserve.close()
    assert not batch.aborted
    world.reserve.give_back(taken)
    assert batch.aborted
    assert world.reserve.is_empty


def test_slots_of_an_ended_session_are_never_given(world: World) -> None:
    """After a restart of the store only slots of the new session are given."""
    world.fill(LEAST_SLOTS)
    [old] = world.store.batches
    taken = world.reserve.take(1)
    old.usable = False
    assert world.reserve.take(1) == []
    world.answers.answer_all()
    [spare] = world.reserve.take(1)
    assert spare.batch.slots is world.store.batches[1]
    world.reserve.give_back(taken)
    assert old.aborted
