"""Places where a test can have a process die."""

import signal
import subprocess
import sys

import pytest

from kvstore_client.fault_points import FaultPlan


def test_without_a_plan_nothing_happens() -> None:
    """An empty plan has no signal for any visit."""
    plan = FaultPlan("")
    assert [plan.visit("insert.after") for _ in range(3)] == [None] * 3


def test_the_planned_visit_has_its_signal() -> None:
    """Visits are counted by name, and each planned one has its own signal."""
    plan = FaultPlan("insert.after:2=kill,release.before:1=stop")
    assert plan.visit("insert.after") is None
    assert plan.visit("insert.before") is None
    assert plan.visit("insert.after") == signal.SIGKILL
    assert plan.visit("insert.after") is None
    assert plan.visit("release.before") == signal.SIGSTOP


@pytest.mark.parametrize("text", ["insert", "insert:1", "insert:x=kill", "a:1=burn", ":1=kill"])
def test_a_plan_that_is_none_is_refused(text: str) -> None:
    """A misspelt plan is an error, for otherwise its test would pass without a fault."""
    with pytest.raises(ValueError, match="KVSTORE_FAULT"):
        FaultPlan(text)


def test_a_process_kills_itself_where_it_was_told_to() -> None:
    """The environment's plan is carried out at the named visit, and not before."""
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
