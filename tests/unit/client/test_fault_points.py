"""Points at which a test can kill its process."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from kvstore_client.fault_points import ACTIONS, FaultPlan, fault_point, plan_faults


@pytest.fixture
def no_plan() -> Iterator[None]:
    """Removes the process's plan afterwards."""
    yield
    plan_faults("")


def test_without_a_plan_nothing_happens() -> None:
    """An empty plan has no action for any visit."""
    plan = FaultPlan("")
    assert [plan.visit("insert.after") for _ in range(3)] == [None] * 3


def test_the_planned_visit_has_its_action() -> None:
    """Visits are counted by name, and a planned visit has its own action."""
    plan = FaultPlan("insert.after:2=kill,release.before:1=stop")
    assert plan.visit("insert.after") is None
    assert plan.visit("insert.before") is None
    assert plan.visit("insert.after") is ACTIONS["kill"]
    assert plan.visit("insert.after") is None
    assert plan.visit("release.before") is ACTIONS["stop"]


@pytest.mark.parametrize("text", ["insert", "insert:1", "insert:x=kill", "a:1=burn", ":1=kill"])
def test_a_plan_that_is_none_is_refused(text: str) -> None:
    """A misspelt plan is refused, because its test would pass without a fault."""
    with pytest.raises(ValueError, match="KVSTORE_FAULT"):
        FaultPlan(text)


def test_a_process_kills_itself_where_it_was_told_to() -> None:
    """A process kills itself at the visit that its environment names, and not before."""
    code = (
        "from kvstore_client.fault_points import fault_point\n"
        "for step in range(3): fault_point('mine'); print(step, flush=True)"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"KVSTORE_FAULT": "mine:2=kill", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (-signal.SIGKILL, b"0\n")


@pytest.mark.usefixtures("no_plan")
def test_a_program_plans_actions_of_its_own() -> None:
    """A new plan replaces the old one, counts from zero and has the program's own actions."""
    done: list[str] = []
    plan_faults("mine:2=note", {"note": lambda: done.append("first")})
    fault_point("mine")
    plan_faults("mine:2=note", {"note": lambda: done.append("second")})
    fault_point("mine")
    assert done == []
    fault_point("mine")
    assert done == ["second"]
