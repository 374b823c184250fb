"""Lookups answer in bounded time, and hold a match exactly as long as it is needed."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from kvstore.v1 import types_pb2
from kvstore_client import DatedRun, Match
from kvstore_client.errors import StoreTimedOut
from kvstore_client.page_runs import Pages
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.offload.lookups import LONGEST_UNUSED, GroupPage, LookedUp, Lookups
from wire.told_answers import ToldAnswers

PAGE, TIMEOUT = 4, 0.25


class Found(Match):
    """A match of the first slots of extent 7, which counts its releases."""

    def __init__(self, page_count: int) -> None:
        runs = [types_pb2.PageRun(extent_id=7, slot_indexes=range(page_count))]
        super().__init__(pages=Pages(runs), token_count=page_count * PAGE)
        self.releases = 0

    def release(self) -> None:
        """Counts it."""
        self.releases += 1


@dataclass
class Asked:
    """The fields of vLLM's ``Request`` that are read."""

    num_tokens: int = 6 * PAGE
    request_id: str = "a request"
    num_prompt_tokens: int = 6 * PAGE
    num_computed_tokens: int = 0
    num_in_flight_tokens: int = 0
    all_token_ids: Sequence[int] = tuple(range(6 * PAGE))


@dataclass
class World:
    """Lookups of a store that answers when told, and a clock that tests move."""

    match: Match = field(default_factory=Match)
    counts: "Counter[str]" = field(default_factory=Counter)
    answers: ToldAnswers = field(default_factory=ToldAnswers)
    usable: bool = True
    joining: bool = False
    now: float = 0.0

    def __post_init__(self) -> None:
        settings = PlannerSettings(page_tokens=PAGE, lookup_timeout=TIMEOUT)
        work: Any = self
        self.lookups = Lookups(
            settings,
            work,
            self.answers,
            self.counts,
            usable=lambda: self.usable,
            joining=lambda: self.joining,
            clock=self._clock,
        )
        self.tracked = LookedUp(Asked(), RequestKey())

    def _clock(self) -> float:
        # Each look at the clock takes a while, so that waits end.
        self.now += 0.0001
        return self.now

    def look_up(self, *_: object) -> Match:
        """Answers with the match that the test set."""
        return self.match

    def known(self) -> bool:
        """Asks whether the answer is there."""
        return self.lookups.known(self.tracked)

    def has(self, page: int) -> bool | None:
        """Asks for a page of the path."""
        return self.lookups.has(self.tracked, GroupPage(0, page))


@pytest.fixture
def world() -> World:
    """Provides a store that has four of the request's six pages."""
    return World(Found(4))


def releases(world: World) -> int:
    """Returns how often the match was released."""
    assert isinstance(world.match, Found)
    return world.match.releases


def test_pages_are_unknown_until_the_store_answered(world: World) -> None:
    """Then the matched ones are loadable, and held until the load ended."""
    assert not world.known()
    assert world.has(0) is None
    world.answers.answer_all()
    assert world.known()
    assert [world.has(page) for page in (0, 3, 4)] == [True, True, False]
    pages = [GroupPage(0, 1), GroupPage(0, 2), GroupPage(0, 3)]
    assert world.lookups.take(world.tracked, pages) == (DatedRun(7, [1, 2, 3]),)
    world.lookups.drop(world.tracked)
    assert releases(world) == 0
    world.lookups.loaded(world.tracked)
    assert releases(world) == 1
    assert world.tracked.stored_pages == 4
    assert world.counts["lookups_partial"] == 1


def test_a_page_that_is_not_held_is_not_given(world: World) -> None:
    """A page beyond the match, or after the match went, has no slot."""
    assert world.lookups.take(world.tracked, [GroupPage(0, 0)]) is None
    world.known()
    world.answers.answer_all()
    assert world.lookups.take(world.tracked, [GroupPage(0, 4)]) is None
    assert world.lookups.take(world.tracked, [GroupPage(1, 0)]) is None
    world.lookups.drop(world.tracked)
    assert world.lookups.take(world.tracked, [GroupPage(0, 0)]) is None


def test_without_an_answer_it_is_a_miss_in_time(world: World) -> None:
    """After the timeout nothing is loadable, and a late answer is released."""
    assert not world.known()
    world.now += TIMEOUT
    assert world.known()
    assert world.has(0) is False
    assert world.counts["lookups_timeout"] == 1
    world.answers.answer_all()
    assert releases(world) == 1


def test_scheduling_waits_once_and_never_for_a_slow_store(world: World) -> None:
    """A store that did not answer the last request in time delays no other."""
    world.known()
    before = world.now
    other = LookedUp(Asked(), RequestKey())
    assert not world.known()
    assert not world.lookups.known(other)
    assert world.now - before < 0.001
    world.answers.answer_all()
    third = LookedUp(Asked(), RequestKey())
    before = world.now
    assert not world.lookups.known(third)
    assert world.now - before > 0.001


@pytest.mark.parametrize("state", ["unusable", "failed"])
def test_a_store_that_fails_is_a_miss(world: World, state: str) -> None:
    """It is one if the client knows it before the call, and if the call fails."""
    world.usable = state != "unusable"
    world.match = Match(failure=StoreTimedOut("no answer"))
    world.known()
    world.answers.answer_all()
    assert world.known()
    assert world.has(0) is False
    assert world.counts["lookups_unavailable"] == 1


def test_a_lookup_waits_for_ranks_that_are_about_to_join(world: World) -> None:
    """It is sent once they have joined."""
    world.joining = True
    assert not world.known()
    assert not world.answers.asked
    world.joining = False
    assert not world.known()
    world.answers.answer_all()
    assert world.known()
    assert world.has(3)
    world.lookups.drop(world.tracked)


def test_a_match_that_nobody_uses_is_given_back_and_asked_again(world: World) -> None:
    """A request that vLLM has no memory for does not hold pages for long."""
    world.known()
    world.answers.answer_all()
    world.lookups.expire(world.tracked)
    assert releases(world) == 0
    world.now += LONGEST_UNUSED
    world.lookups.expire(world.tracked)
    assert releases(world) == 1
    assert not world.known()
    world.answers.answer_all()
    assert world.has(3)
    world.lookups.drop(world.tracked)


def test_a_request_that_may_not_load_is_not_looked_up(world: World) -> None:
    """Every token of it is computed."""
    world.tracked.may_load = False
    assert world.known()
    assert world.has(0) is False
    assert not world.answers.asked
