"""The cost of calls with KV cache groups: it grows with the path and the pages, not with both."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from core.core_builders import NAMESPACE_ID, CoreWorld
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.tiers.moves import Move
from kvstore.core.values.requests import GroupInsert, GroupWindow, MatchOptions, SlotMoves

SHORT, LONG = 40, 80


def letters(count: int) -> str:
    """Returns a sequence of so many pages."""
    return "".join(chr(1000 + number) for number in range(count))


def count_steps(action: Callable[[], object]) -> int:
    """Returns how many lines ran in ``action``, each as often as it ran."""
    count, before = 0, sys.gettrace()

    def note(frame: FrameType, event: str, argument: Any) -> Any:  # noqa: ANN401 - anything
        nonlocal count
        del frame, argument
        count += event == "line"
        return note

    sys.settrace(note)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


def test_groups_without_a_page_cost_one_look_at_each_end() -> None:
    """A match that names a thousand groups does not look for all of them at each page."""
    world = CoreWorld(slots=2 * LONG + 4)
    world.worker.publish_groups(letters(LONG), g1="1" * LONG)
    windows = dict.fromkeys(range(1, 1025), 1)
    few = count_steps(lambda: world.worker.match_groups(letters(SHORT), 1, windows))
    many = count_steps(lambda: world.worker.match_groups(letters(LONG), 2, windows))
    assert many - few < 50 * (LONG - SHORT)


@pytest.mark.parametrize("retires", [False, True])
def test_late_pages_of_groups_cost_the_same_on_a_long_path(*, retires: bool) -> None:
    """An insert looks for the end of a held path once, not once for each page."""

    def steps(count: int) -> int:
        world = CoreWorld(slots=3 * count + 4)
        world.worker.publish_groups(letters(count), g1="1" * count)
        world.worker.match(letters(count), 1)
        if retires:
            world.cache.add_extent(1, 9, 4)
            world.cache.retire_extent(1, 9)
        world.worker.reserve(50, count)
        moves = SlotMoves(50, groups=[GroupInsert(2, range(count), range(count))])
        return count_steps(lambda: world.worker.insert(60, "", count, moves=moves, base_pin_id=1))

    assert steps(LONG) < 2.2 * steps(SHORT)


def test_pages_that_are_in_memory_cost_no_plan() -> None:
    """To promote what a match needs, nobody looks for copies of each page of a group."""

    def steps(count: int) -> int:
        policy = TierPolicy(promote=True)
        world = CoreWorld(slots=2 * count + 4, tier_policy=policy, lower_slots=2)
        world.worker.publish_groups(letters(count), g1="1" * count)
        sequence, options = world.worker.sequence(letters(count)), MatchOptions(1)
        asked = options._replace(groups=(GroupWindow(1, 0),))
        caller = world.worker.caller
        plan = world.cache.plan_promotion
        return count_steps(lambda: plan(caller, NAMESPACE_ID, sequence, asked, count))

    assert steps(LONG) < 2.2 * steps(SHORT)


def through(count: int) -> CoreWorld:
    """Returns a world in which a sequence with a page of group 1 at each page is to go down."""
    policy = TierPolicy(write=WritePolicy.THROUGH, promote=True, low=0.0, high=0.0)
    world = CoreWorld(slots=2 * count + 4, tier_policy=policy, lower_slots=2 * count)
    world.worker.publish_groups(letters(count), g1="1" * count)
    return world


def test_pages_of_groups_go_down_at_the_cost_of_their_number() -> None:
    """Nobody looks for copies along the whole path of each of them."""

    def steps(count: int) -> int:
        world = through(count)
        plan, finish = world.cache.plan_moves, world.cache.finish_moves
        return count_steps(lambda: [finish(plan(SHORT)) for _ in range(2 * count // SHORT)])

    assert steps(2 * LONG) < 2.2 * steps(LONG)


def test_pages_of_groups_come_up_at_the_cost_of_their_number() -> None:
    """Each is a move of its own, which looks at no other page of the path."""

    def steps(count: int) -> tuple[int, int]:
        world, plan = sunk(count)
        moves: list[Move] = []
        planned = count_steps(lambda: moves.extend(plan(2 * count)))
        finished = count_steps(lambda: world.cache.finish_moves(moves))
        assert world.cache.counters.promoted_page_count == 2 * count
        world.laws.check()
        return planned, finished

    for short, long in zip(steps(LONG), steps(2 * LONG), strict=True):
        assert long < 2.2 * short


def test_a_promotion_is_planned_in_steps_of_a_few_pages() -> None:
    """A step leaves out what is under way, so there is an end, and all pages come up."""
    world, plan = sunk(SHORT)
    moves: list[Move] = []
    while planned := plan(30):
        assert sum(len(move.transfers) for move in planned) <= 30
        moves += planned
    assert world.cache.finish_moves(moves) == 2 * SHORT
    world.laws.check()


def test_nothing_is_promoted_without_room() -> None:
    """A tier 1 that others have reserved gets no page, and the match uses tier 2 in place."""
    world, plan = sunk(SHORT)
    world.worker.reserve(71, 2 * SHORT + 4)
    assert plan(30) == []
    world.laws.check()
    match = world.worker.match_groups(letters(SHORT), 1, {1: 0})
    assert {run.tier for group in match.groups for run in group.runs} == {2}


def sunk(count: int) -> tuple[CoreWorld, Callable[[int], list[Move]]]:
    """Returns a world whose pages are in tier 2 alone, and what plans to promote so many."""
    world = through(count)
    while moves := world.cache.plan_moves(count):
        world.cache.finish_moves(moves)
    world.worker.reserve(70, 2 * count + 4)
    world.worker.abort(70)
    sequence = world.worker.sequence(letters(count))
    options = MatchOptions(1, groups=(GroupWindow(1, 0),))
    asked = world.worker.caller, NAMESPACE_ID, sequence, options
    return world, lambda most: world.cache.plan_promotion(*asked, most)
