"""Runs the stages of a script and records each step as it ends."""

import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from threading import Thread
from typing import IO, Any, Final

from gpu_machine.results import Results, entries
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

# Exit status of probes, and of automake's tests, that cannot run.
NO_DEVICE_STATUS: Final = 77
# The first line of a benchmark without a device, as text and as JSON.
SAYS_NO_DEVICE: Final = re.compile(r'^(\{.*"skipped": ")?(skipped: )?no CUDA device', re.MULTILINE)
TRACEBACK: Final = "Traceback (most recent call last)"
IMPORT_FAILED: Final = re.compile(r"\b(ImportError|ModuleNotFoundError)\b")
# The reason of a skip in tests/conftest.py and tests/gpu/conftest.py.
SKIP_OF_DEVICE: Final = "CUDA device"
# Seconds between SIGTERM and SIGKILL.
GRACE_SECONDS: Final = 5.0
# With less time left, no step is started.
LEAST_SECONDS: Final = 3.0
# Variables that tell a program its file of records, and its step: pytest_record.py.
RECORDS: Final = "KVSTORE_RECORDS"
RECORDED_STEP: Final = "KVSTORE_RECORDED_STEP"
LONGEST_WHY: Final = 300


class Runner:
    """Runs steps in a folder, with an environment, until ``time.monotonic()`` is ``deadline``.

    ``no_device`` says why there is no CUDA device, or is None if there is one. Without a device, a
    program that fails but does not crash is no failure.
    """

    def __init__(
        self,
        results: Results,
        *,
        folder: Path,
        environment: Mapping[str, str],
        deadline: float,
        no_device: str | None,
    ) -> None:
        self._results = results
        self._folder = folder
        self._environment = environment
        self._deadline = deadline
        self._no_device = no_device

    def run(self, stages: Sequence[Stage]) -> list[Outcome]:
        """Runs all stages and returns the outcomes, in the order of the steps."""
        outcomes: list[Outcome] = []
        for stage in stages:
            end = min(self._deadline, time.monotonic() + stage.seconds)
            with ThreadPoolExecutor(max(1, len(stage.lanes))) as pool:
                lanes = [pool.submit(self._run_lane, lane, end) for lane in stage.lanes]
                outcomes += [each for lane in lanes for each in lane.result()]
        return outcomes

    def _run_lane(self, steps: Sequence[Step], end: float) -> list[Outcome]:
        return [self._run_step(step, end) for step in steps]

    def _run_step(self, step: Step, end: float) -> Outcome:
        begin = time.monotonic()
        limit = min(step.seconds, end - begin)
        if limit < LEAST_SECONDS:
            outcome = Outcome(step.name, LEFT_OUT, 0.0, "no time was left", {})
        else:
            try:
                outcome = self._execute(step, limit)
            except OSError as error:
                seconds = time.monotonic() - begin
                outcome = Outcome(step.name, FAILED, seconds, f"it cannot be started: {error}", {})
        self._results.record({"kind": "step", "command": step.command, **asdict(outcome)})
        print(f"{outcome.verdict:>15}  {outcome.seconds:6.1f} s  {step.name}", flush=True)
        return outcome

    def _execute(self, step: Step, limit: float) -> Outcome:
        if shutil.which(step.command[0], path=self._environment.get("PATH")) is None:
            why = f"{step.command[0]} is not in PATH"
            verdict = MISSING if self._no_device is None else NO_DEVICE
            return Outcome(step.name, verdict, 0.0, why, {})
        begin = time.monotonic()
        recorded = {RECORDS: str(self._results.records), RECORDED_STEP: step.name}
        partial = self._results.folder / f".{step.output}.part" if step.output else None
        tail: deque[str] = deque(maxlen=400)
        with ExitStack() as stack:
            process = subprocess.Popen(  # noqa: S603 - a plan of ours
                step.command,
                cwd=self._folder,
                env={**self._environment, **step.environment, **recorded},
                stdin=subprocess.DEVNULL,
                stdout=stack.enter_context(partial.open("wb")) if partial else subprocess.PIPE,
                stderr=subprocess.PIPE if partial else subprocess.STDOUT,
                # Of the same session: whoever ends that ends the step.
                process_group=0,
            )
        stream = process.stderr if partial else process.stdout
        assert stream is not None
        reader = Thread(target=self._follow, args=(step.name, stream, tail), daemon=True)
        reader.start()
        timed_out = _wait(process, limit)
        # A grandchild in a group of its own may keep the pipe open.
        reader.join(GRACE_SECONDS)
        if not reader.is_alive():
            stream.close()
        seconds = time.monotonic() - begin
        said = "\n".join(tail)
        if partial:
            said += "\n" + partial.read_text(encoding="utf-8", errors="replace")[-100_000:]
        outcome = self._judge(step, process.returncode, said, seconds, timed_out=timed_out)
        if partial and step.output:
            if outcome.verdict == PASSED:
                partial.rename(self._results.folder / step.output)
            else:
                partial.unlink()
        return outcome

    def _follow(self, name: str, stream: IO[bytes], tail: deque[str]) -> None:
        for line in stream:
            text = line.decode(errors="replace")
            tail.append(text.rstrip())
            self._results.log(name, text)

    def _judge(
        self, step: Step, status: int, said: str, seconds: float, *, timed_out: bool
    ) -> Outcome:
        facts = self._counts(step.name) if step.tests else _last_json(said)
        why = str(facts.get("why") or _last_line(said))[:LONGEST_WHY]
        if timed_out:
            verdict, why = TIMED_OUT, f"after {seconds:.0f} s; {why}"
        elif status == NO_DEVICE_STATUS or (status == 0 and SAYS_NO_DEVICE.search(said)):
            verdict = NO_DEVICE
        elif status != 0:
            # Without a device a program may report that and fail, but not crash or be misused.
            crashed = TRACEBACK in said or IMPORT_FAILED.search(said) or step.tests
            expected = self._no_device is not None and status == 1 and not crashed
            verdict = NO_DEVICE if expected else FAILED
        elif step.tests and not facts.get("passed"):
            of_device = SKIP_OF_DEVICE in why
            verdict = NO_DEVICE if of_device else SKIPPED
        else:
            verdict = str(facts.get("answer", PASSED))
        return Outcome(step.name, verdict, round(seconds, 1), why, facts)

    def _counts(self, step: str) -> dict[str, Any]:
        """Counts a step's tests by their last outcome; ``why`` is the first failure, or skip."""
        last = {
            each["test"]: each
            for each in entries(self._results.folder)
            if each["kind"] == "test" and each["step"] == step
        }
        counts: dict[str, Any] = {}
        for each in last.values():
            counts[each["outcome"]] = counts.get(each["outcome"], 0) + 1
        for outcome in ("failed", "started", "skipped"):
            first = next((each for each in last.values() if each["outcome"] == outcome), None)
            if first is not None:
                return {**counts, "why": f"{first['test'].split('/')[-1]}: {first['why']}"}
        return counts


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> bool:
    """Waits ``limit`` seconds for a process, ends its group, and returns whether it was late."""
    timed_out = False
    try:
        process.wait(limit)
    except subprocess.TimeoutExpired:
        timed_out = True
        _signal(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)
    _signal(process.pid, signal.SIGKILL)
    process.wait()
    return timed_out


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def _last_json(said: str) -> dict[str, Any]:
    """Returns the last line that is a JSON object, or an empty one."""
    for line in reversed(said.splitlines()):
        if line.startswith("{"):
            with suppress(ValueError):
                return dict(json.loads(line))
    return {}


def _last_line(said: str) -> str:
    return next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "")
