"""The cost of calls with KV cache groups: it grows with the path and the pages, not with both."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from core.core_builders import NAMESPACE_ID, CoreWorld
from kvstore.core.pool.tier_policy import TierPolicy
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
        return count_steps(lambda: plan(caller, NAMESPACE_ID, sequence, asked))

    assert steps(LONG) < 2.2 * steps(SHORT)
