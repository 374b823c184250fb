"""Steps of a GPU run: bounded in time, recorded as they end, independent of each other."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_machine.results import Results, entries
from gpu_machine.runner import LEAST_SECONDS, Runner
from gpu_machine.steps import (
    FAILED,
    LEFT_OUT,
    MISSING,
    NO_DEVICE,
    PASSED,
    SKIPPED,
    TIMED_OUT,
    Outcome,
    Stage,
    Step,
)
from kvstore_client.testing import wait_until

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
PATIENCE = 60.0
# Steps start like programs of a user.
pytestmark = pytest.mark.usefixtures("executed")
NO_DRIVER = "libcuda.so.1 is missing"
RECORDED = ("-p", "gpu_machine.pytest_record", "-p", "no:cacheprovider", "-W", "default")


def python(name: str, code: str, **settings: Any) -> Step:  # noqa: ANN401 - those of Step
    """Returns a step that runs some Python."""
    return Step(
        name=name, command=(sys.executable, "-c", code), **{"seconds": PATIENCE, **settings}
    )


def run(
    folder: Path, *lanes: tuple[Step, ...], no_device: str | None = None, seconds: float = PATIENCE
) -> list[Outcome]:
    """Runs lanes at the same time as one stage of a script named "try"."""
    runner = Runner(
        Results(folder, "try"),
        folder=folder,
        environment={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
        deadline=time.monotonic() + seconds,
        no_device=no_device,
    )
    return runner.run([Stage(PATIENCE, lanes)])


def verdicts(outcomes: list[Outcome]) -> dict[str, str]:
    """Returns the verdicts by step."""
    return {each.step: each.verdict for each in outcomes}


def test_a_failing_step_stops_no_other(tmp_path: Path) -> None:
    """Steps after one that fails, hangs or is missing still run, and the records list all."""
    steps = (
        python("fails", "raise SystemExit(3)"),
        python("hangs", "print('began', flush=True); import time; time.sleep(600)", seconds=4.0),
        Step(name="missing", command=("no-such-program",), seconds=PATIENCE),
        python("passes", "print('fine')"),
    )
    outcomes = run(tmp_path, steps)
    assert verdicts(outcomes) == {
        "fails": FAILED,
        "hangs": TIMED_OUT,
        "missing": MISSING,
        "passes": PASSED,
    }
    assert [each["verdict"] for each in entries(tmp_path)] == [*verdicts(outcomes).values()]
    assert "began" in outcomes[1].why
    log = (tmp_path / "try.log").read_text(encoding="utf-8")
    assert "[hangs] began" in log
    assert "[passes] fine" in log


def test_what_a_step_left_running_ends_with_it(tmp_path: Path) -> None:
    """A step that times out takes its children along and does not delay the others."""
    child = "import subprocess, sys, time; p = subprocess.Popen(['sleep', '600'])"
    step = python("parent", f"{child}; print(p.pid, flush=True); time.sleep(600)", seconds=4.0)
    (outcome,) = run(tmp_path, (step,))
    assert outcome.verdict == TIMED_OUT
    pid = int(outcome.why.rpartition(" ")[2])
    status = Path(f"/proc/{pid}/stat")
    # Dead, although the machine's first process may not have reaped it yet.
    assert not status.exists() or ") Z " in status.read_text(encoding="utf-8")


def test_what_a_step_left_running_ends_also_where_the_step_ended_first(tmp_path: Path) -> None:
    """A dead step's children are ended too, such as stores that hold the device's memory."""
    child = "import os, subprocess; p = subprocess.Popen(['sleep', '600'])"
    begin = time.monotonic()
    (outcome,) = run(tmp_path, (python("dies", f"{child}; print(p.pid, flush=True); os._exit(9)"),))
    assert time.monotonic() - begin < PATIENCE
    assert outcome.verdict == FAILED
    status = Path(f"/proc/{int(outcome.why)}/stat")

    def has_ended() -> bool:
        try:
            return ") Z " in status.read_text(encoding="utf-8")
        except (FileNotFoundError, ProcessLookupError):
            return True

    assert wait_until(has_ended)


def test_a_step_ends_with_the_session_of_its_script(tmp_path: Path) -> None:
    """A step has its own group in the script's session, so ending the session ends it."""
    (outcome,) = run(
        tmp_path, (python("which", "import os; print(os.getsid(0), os.getpgid(0) == os.getpid())"),)
    )
    assert outcome.why == f"{os.getsid(0)} True"


def test_lanes_run_at_once(tmp_path: Path) -> None:
    """Each of two steps waits for a file of the other one."""
    waits = (
        "import time; from pathlib import Path\n"
        "Path({!r}).touch()\n"
        "while not Path({!r}).exists(): time.sleep(0.01)"
    )
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    outcomes = run(
        tmp_path, (python("a", waits.format(one, two)),), (python("b", waits.format(two, one)),)
    )
    assert verdicts(outcomes) == {"a": PASSED, "b": PASSED}


def test_what_has_no_time_is_left_out(tmp_path: Path) -> None:
    """A step without time is not started, and the record says so."""
    (outcome,) = run(tmp_path, (python("late", "print(1)"),), seconds=LEAST_SECONDS / 2)
    assert outcome.verdict == LEFT_OUT


@pytest.mark.parametrize(
    ("code", "with_device", "without_device"),
    [
        ("print('cuda:0 is not there'); raise SystemExit(1)", FAILED, NO_DEVICE),
        ("raise SystemExit(77)", NO_DEVICE, NO_DEVICE),
        ("print('no such option'); raise SystemExit(2)", FAILED, FAILED),
        ("print('skipped: no CUDA device')", NO_DEVICE, NO_DEVICE),
        ("import no_such_package", FAILED, FAILED),
        ("raise ValueError", FAILED, FAILED),
        ("print('the log says no CUDA device was lost')", PASSED, PASSED),
    ],
)
def test_only_a_step_that_says_so_needs_a_device(
    tmp_path: Path, code: str, with_device: str, without_device: str
) -> None:
    """A step that crashes has failed, on any machine."""
    (there,) = run(tmp_path, (python("step", code),))
    (missing,) = run(tmp_path, (python("step", code),), no_device=NO_DRIVER)
    assert (there.verdict, missing.verdict) == (with_device, without_device)


def test_a_program_that_is_missing_beside_a_device_is_no_failure(tmp_path: Path) -> None:
    """A machine without a device lacks the device's tools too, so this is no failure."""
    step = Step(name="nvidia-smi", command=("no-such-program",), seconds=PATIENCE)
    (outcome,) = run(tmp_path, (step,), no_device=NO_DRIVER)
    assert outcome.verdict == NO_DEVICE


def test_an_answer_is_the_verdict(tmp_path: Path) -> None:
    """The last line of JSON is the verdict, with the reason."""
    answer = json.dumps({"answer": "no", "why": "refused", "pids": [1, 1]})
    (outcome,) = run(tmp_path, (python("probe", f"print('{answer}')"),))
    assert (outcome.verdict, outcome.why, outcome.facts["pids"]) == ("no", "refused", [1, 1])


def test_output_appears_whole_or_not(tmp_path: Path) -> None:
    """A result file appears only if its program ended with status 0. Its errors are in the log."""
    says = "import sys; print('{}', file=sys.stderr); print(1); raise SystemExit({})"
    steps = (
        python("good", says.format("fine", 0), output="good.json"),
        python("bad", says.format("broken", 1), output="bad.json"),
    )
    run(tmp_path, steps)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["good.json", "try.jsonl", "try.log"]
    assert (tmp_path / "good.json").read_text(encoding="utf-8") == "1\n"
    assert "[bad] broken" in (tmp_path / "try.log").read_text(encoding="utf-8")


TESTS = """
import os, pytest

def test_passes(): pass

@pytest.mark.parametrize("case", ["a long name"])
def test_fails(case): assert case == "another"

@pytest.mark.skip(reason="not today")
def test_is_skipped(): pass
"""


def running(tmp_path: Path, name: str, source: str) -> Step:
    """Returns a step that runs a file of tests."""
    (tmp_path / f"test_{name}.py").write_text(source, encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = (sys.executable, "-m", "pytest", *RECORDED, f"test_{name}.py")
    return Step(name=name, command=command, seconds=PATIENCE, tests=True)


def test_each_test_is_recorded(tmp_path: Path) -> None:
    """Each test is recorded with its reason and the id that `again` needs."""
    (outcome,) = run(tmp_path, (running(tmp_path, "some", TESTS),))
    assert outcome.verdict == FAILED
    assert {k: v for k, v in outcome.facts.items() if k != "why"} == {
        "passed": 1,
        "failed": 1,
        "skipped": 1,
    }
    last = {each["test"]: each for each in entries(tmp_path) if each["kind"] == "test"}
    failed = last["test_some.py::test_fails[a long name]"]
    assert (failed["step"], failed["outcome"]) == ("some", "failed")
    assert "assert" in failed["why"]
    assert last["test_some.py::test_is_skipped"]["why"] == "not today"


def test_a_test_that_ends_its_process_is_found(tmp_path: Path) -> None:
    """A test that started and never ended is found."""
    source = "import os\ndef test_first(): pass\ndef test_dies(): os._exit(9)\n"
    (outcome,) = run(tmp_path, (running(tmp_path, "dying", source),))
    assert outcome.verdict == FAILED
    assert outcome.facts["started"] == 1
    assert outcome.why == "test_dying.py::test_dies: it never ended"


@pytest.mark.parametrize(
    ("reason", "verdict"),
    [("needs a CUDA device: no driver", NO_DEVICE), ("needs another moon", SKIPPED)],
)
def test_tests_that_all_skip_have_passed_nothing(tmp_path: Path, reason: str, verdict: str) -> None:
    """Skipped tests are not passed, whether for a missing device or another reason."""
    source = f"import pytest\n@pytest.mark.skip(reason={reason!r})\ndef test_it(): pass\n"
    (outcome,) = run(tmp_path, (running(tmp_path, "idle", source),))
    assert outcome.verdict == verdict
