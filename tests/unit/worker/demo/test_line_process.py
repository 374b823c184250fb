"""The caller of a process can tell its answers, its errors and its end apart."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import IO

import pytest

from inference_worker.demo.line_process import LineProcess, reference_process, worker_process
from inference_worker.errors import ProcessEndedError, WorkerError
from kvstore_client.testing import wait_until

# Executes its requests like a program of the project, and reports its arguments.
PROGRAM = """
import json, os, signal, sys
print(json.dumps({"ready": True}), flush=True)
print("a line for the log", file=sys.stderr, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    if request["op"] == "end":
        sys.exit(5)
    if request["op"] == "linger":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        print(json.dumps({"id": request["id"]}), flush=True)
        signal.sigwait([signal.SIGTERM])
    if request["op"] == "fail":
        print(json.dumps({"id": request["id"], "error": "ValueError: no"}), flush=True)
    else:
        found = {"arguments": sys.argv[1:], "named": os.environ.get("LINE_PROCESS_TEST")}
        print(json.dumps({"id": request["id"], **found}), flush=True)
"""


@pytest.fixture
def log(tmp_path: Path) -> Iterator[IO[bytes]]:
    """Returns a file for the process's standard error."""
    with (tmp_path / "log").open("wb") as opened:
        yield opened


@pytest.fixture
def process(tmp_path: Path, log: IO[bytes]) -> Iterator[LineProcess]:
    """Returns a process that runs ``PROGRAM``."""
    (tmp_path / "line_program.py").write_text(PROGRAM)
    environment = {"PYTHONPATH": str(tmp_path), "LINE_PROCESS_TEST": "yes"}
    arguments = ("--some", "thing")
    with LineProcess("P", "line_program", arguments, log=log, environment=environment) as started:
        started.wait_ready()
        yield started


def test_a_request_is_answered(process: LineProcess, tmp_path: Path) -> None:
    """The process answers line by line, and gets its arguments, environment and log as given."""
    first, second = process.ask(op="say"), process.ask(op="say")
    assert (first["arguments"], first["named"]) == (["--some", "thing"], "yes")
    assert second["id"] == first["id"] + 1
    assert Path(f"/proc/{process.pid}").exists()
    process.close()
    assert "a line for the log" in (tmp_path / "log").read_text()


def test_an_error_is_raised_and_survived(process: LineProcess) -> None:
    """An error carries the answer's text and the process's name, and the next request is served."""
    with pytest.raises(WorkerError, match=r"^P: ValueError: no$"):
        process.ask(op="fail")
    assert process.ask(op="say")["named"] == "yes"


def test_its_end_instead_of_an_answer_is_raised(process: LineProcess) -> None:
    """The end of the process raises its exit status, at once and on every later call."""
    with pytest.raises(ProcessEndedError) as caught:
        process.ask(op="end")
    assert (caught.value.name, caught.value.status) == ("P", 5)
    assert process.wait_ended(30) == 5
    with pytest.raises(ProcessEndedError):
        process.ask(op="say")


def test_closing_it_ends_it(process: LineProcess) -> None:
    """The process ends by itself when its input ends. Closing it again changes nothing."""
    process.close()
    assert process.wait_ended(0) == 0
    process.close()


def test_one_that_does_not_end_is_killed(process: LineProcess) -> None:
    """A process that is stuck is killed once the timeout of its close is over."""
    process.send(op="linger")
    process.wait_ready()
    with pytest.raises(WorkerError, match="P did not end within"):
        process.wait_ended(0.01)
    process.close(0.01)
    assert process.wait_ended(0) == -signal.SIGKILL


def test_whoever_waits_for_one_that_is_killed_is_told(process: LineProcess) -> None:
    """A caller that waits for a killed process is told that it ended."""
    process.send(op="linger")
    process.wait_ready()
    process.kill()
    with pytest.raises(ProcessEndedError) as caught:
        process.wait_ready()
    assert caught.value.status == -signal.SIGKILL


def test_one_that_cannot_start_says_so(log: IO[bytes], tmp_path: Path) -> None:
    """A module that does not exist ends before it is ready, with the reason in the log."""
    with LineProcess("P", "no_such_module", [], log=log) as missing:
        with pytest.raises(ProcessEndedError):
            missing.wait_ready()
        assert missing.wait_ended(0) == 1
    assert "no_such_module" in (tmp_path / "log").read_text()


def command_line(process: LineProcess) -> list[str]:
    """Returns a process's command line. It waits while the process has none during its exec."""
    file = Path(f"/proc/{process.pid}/cmdline")
    assert wait_until(lambda: bool(file.read_bytes()))
    return file.read_text().split("\0")[:-1]


def test_the_projects_processes_are_started_as_they_are_asked_for(
    log: IO[bytes], tmp_path: Path
) -> None:
    """Workers get model, store, name and length, the reference a folder and threads, in float32."""
    store, model = tmp_path / "store", tmp_path / "model"
    lines: list[list[str]] = []
    for start in (
        partial(worker_process, "A", "tiny", store, longest=77),
        partial(reference_process, model, threads=3),
        partial(worker_process, "B", "tiny", store, longest=77, device="cuda:99"),
        partial(reference_process, model, threads=3, device="cuda:99"),
    ):
        started = start(log=log)
        try:
            lines.append(command_line(started))
        finally:
            started.close(0)
    worker, reference, placed, reference_placed = lines
    assert worker == [
        *(sys.executable, "-m", "inference_worker", "run", "--model", "tiny"),
        *("--runtime-dir", str(store), "--name", "A", "--longest", "77"),
    ]
    folder = str(model)
    assert reference == [
        *(sys.executable, "-m", "inference_worker.demo.reference"),
        *("--model", folder, "--threads", "3"),
    ]
    assert placed[len(worker) :] == ["--device", "cuda:99", "--dtype", "float32"]
    assert reference_placed == [*reference, "--device", "cuda:99"]


def test_the_other_end_of_a_worker_needs_no_torch() -> None:
    """A program that only asks workers does not load torch."""
    code = "import sys, inference_worker.demo.line_process; print('torch' in sys.modules)"
    environment = {"PYTHONPATH": ":".join(sys.path)}
    said = subprocess.check_output([sys.executable, "-c", code], env=environment, text=True)
    assert said == "False\n"
