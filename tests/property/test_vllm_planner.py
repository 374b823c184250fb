"""A connector's scheduler half under any order of requests, answers, steps and failures.

The engine follows vLLM's scheduler, the store is a naive one, and both look at each page: nothing
is read that is not pinned, nothing written that is not reserved, no block read that vLLM took
back, no page published that is another's, and at the end nothing is held.
"""

import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstore_vllm.scheduler.save_path import SavePath
from kvstore_vllm.scheduler.tracked_requests import RequestLookup
from kvstore_vllm.scheduler.transfer_jobs import Jobs
from kvstore_vllm.scheduler.transfer_planner import TransferPlanner
from kvstore_vllm.step_plan import StepPlan
from vllm_rig.planner_world import ACTIONS, PlannerWorld, Setup

# An action, and a number that chooses what it is about. Not rules of a state machine, some of
# which hypothesis leaves out in each run: without arrivals nothing happens.
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 1_000)), min_size=30, max_size=90
)
SETUPS = st.builds(
    Setup,
    load_async=st.booleans(),
    save_output=st.booleans(),
    ranks=st.integers(1, 2),
    lag=st.integers(0, 1),
    saves_beside=st.booleans(),
    blocks=st.sampled_from([8, 30]),
    slots=st.sampled_from([3, 12, 40]),
)


@given(setup=SETUPS, steps=STEPS)
def test_whatever_happens_all_is_given_back_and_nothing_wrong_is_stored(
    setup: Setup, steps: list[tuple[Callable[[PlannerWorld, int], None], int]]
) -> None:
    """Requests come, are answered, loaded, computed, saved, preempted, aborted, in any order."""
    world = PlannerWorld(setup)
    for action, number in steps:
        action(world, number)
    world.end()


@pytest.mark.parametrize("ranks", [1, 2])
def test_such_a_run_loads_and_stores(ranks: int) -> None:
    """A prompt that comes twice is loaded, so the tests above do load and store."""
    world = PlannerWorld(Setup(ranks=ranks))
    for _ in range(2):
        PlannerWorld.arrive(world, 40)
        for _ in range(8):
            PlannerWorld.go_on(world, 2)
            PlannerWorld.end_load(world, 1)
            PlannerWorld.end_load(world, 1)
        PlannerWorld.finish(world, 0)
        PlannerWorld.go_on(world, 4)
    assert world.engine.planner.counts["loaded_tokens_1"]
    assert world.engine.planner.counts["stored_tokens"]
    world.end()


def run_at_random() -> None:
    """Runs some worlds to their ends, the same each time."""
    for seed in range(100):
        draw = random.Random(seed)
        setup = Setup(ranks=2, lag=seed % 2, load_async=seed % 3 > 0, saves_beside=seed % 4 > 1)
        world = PlannerWorld(setup)
        for _ in range(50):
            draw.choice(ACTIONS)(world, draw.randrange(1_000))
        world.end()


def keep_late_answers(self: RequestLookup) -> None:
    """A dropped answer is given back if it is there, and kept if it comes later."""
    self.answered = True
    if self.match is not None:
        self.match.release()


def keep_no_blocks(self: SavePath, tracked: Any, *rest: Any) -> bool:  # noqa: ANN401
    """Blocks are given back before they are copied."""
    FINISHED(self, tracked, *rest)
    return False


def wait_for_no_save(self: TransferPlanner, plan: StepPlan, *rest: Any) -> None:  # noqa: ANN401
    """Blocks of preempted requests are overwritten while they are copied."""
    PLAN(self, plan, *rest)
    plan.preempted.clear()


FINISHED = SavePath.finished
PLAN = TransferPlanner.plan
FAULTS: dict[str, tuple[type, str, Any]] = {
    "late-answers-are-kept": (RequestLookup, "drop", keep_late_answers),
    "blocks-are-not-held": (SavePath, "finished", keep_no_blocks),
    "preempted-blocks-are-not-waited-for": (TransferPlanner, "plan", wait_for_no_save),
    "one-rank-is-enough": (Jobs, "__init__", lambda self, _: RANKS(self, 1)),
}
RANKS = Jobs.__init__


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the fault as many runs are right; with it one of them is not."""
    run_at_random()
    owner, name, fault_itself = FAULTS[fault]
    monkeypatch.setattr(owner, name, fault_itself)
    with pytest.raises((AssertionError, KeyError)):
        run_at_random()
