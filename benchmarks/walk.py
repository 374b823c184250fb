"""The path of a call through the server: Python functions, files, changes of file, and time.

A whole server runs in this process, with one worker beside it in a thread. Functions are counted
by ``sys.setprofile`` on the thread that answers. Times are of the worker, without a profiler.
"""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from statistics import median
from types import CodeType, FrameType
from typing import Annotated, Any, NamedTuple

import typer

import kvstore
from kvstore.server import run as serve
from kvstore_client.testing import wait_until
from support import machine
from support.rpc.worker import PAGE_TOKENS, Worker, attached_worker

HERE = Path(__file__).resolve()
PACKAGE = Path(kvstore.__file__).resolve().parent
CORE = PACKAGE / "core"
# A hit has a cached prompt and a new question after it.
PROMPT_TOKENS, QUESTION_TOKENS, NEW_PAGES = 2_048, 8, 6
MEMORY = "64MiB"
# Walks of which the most common one counts, and calls of which the median counts.
WALKS = 15
MOST_ROUNDS = 100
CALLS, QUICK_CALLS = 2_000, 100
ROUNDS = 5
WAYS = {"fast path": True, "gRPC": False}
SETTLE_SECONDS = 0.02
START_SECONDS = 60.0
# All ways share a namespace, so no two prompts of a run may be alike.
RANDOM = random.Random(1)


class Walk(NamedTuple):
    """The counts of one call on its serving thread."""

    functions: int
    files: int
    changes_of_file: int
    core_functions: int
    core_files: int
    core_changes_of_file: int


class Profiler:
    """Records which of the server's functions each thread calls, while it is armed."""

    def __init__(self) -> None:
        self._seen: dict[int, list[CodeType]] = defaultdict(list)
        self._armed = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """Records an event of the interpreter."""
        del argument
        if self._armed and event == "call":
            self._seen[threading.get_ident()].append(frame.f_code)

    def walk_of(self, call: Callable[[], object]) -> Walk | None:
        """Makes a call and returns its walk, or None if two threads entered the core meanwhile."""
        self._seen.clear()
        self._armed = True
        call()
        # The serving thread ends its part after the answer is sent.
        time.sleep(SETTLE_SECONDS)
        self._armed = False
        walks = [_files_of(codes) for codes in list(self._seen.values())]
        walks = [each for each in walks if any(path.is_relative_to(CORE) for path in each)]
        return _walk(walks[0]) if len(walks) == 1 else None


def _files_of(codes: list[CodeType]) -> list[Path]:
    """Returns the files of the server's functions among those called, in order."""
    # A comprehension has a frame in some versions of Python, but is no function.
    paths = (Path(code.co_filename) for code in codes if not code.co_name.startswith("<"))
    return [path for path in paths if path.is_relative_to(PACKAGE)]


def _walk(files: list[Path]) -> Walk:
    core = [path for path in files if path.is_relative_to(CORE)]
    return Walk(*_counts(files), *_counts(core))


def _counts(files: list[Path]) -> tuple[int, int, int]:
    changes = sum(one != other for one, other in pairwise(files))
    return len(files), len(set(files)), changes


class Verbs:
    """The calls that are walked. Each of them is prepared before and cleaned up after it."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._prompt = _tokens(PROMPT_TOKENS)
        reservation_id = worker.acquire(self._prompt)[1]
        worker.insert(reservation_id, self._prompt, 0, 0)
        worker.abort(reservation_id)

    def steps(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yields one call of each verb, in the order in which they have to be made."""
        worker, fresh = self._worker, _tokens(NEW_PAGES * PAGE_TOKENS)
        asked = self._prompt + _tokens(QUESTION_TOKENS)
        pins: list[int] = []
        made: list[int] = []
        yield "match", lambda: pins.extend(worker.match(asked)[0])
        yield "release", lambda: worker.release(*pins)
        yield "acquire", lambda: made.append(worker.acquired(fresh)[1])
        yield "insert", lambda: worker.insert(made[0], fresh, 0, 0)
        worker.abort(made[0])


def _tokens(count: int) -> bytes:
    return array("I", (RANDOM.getrandbits(31) for _ in range(count))).tobytes()


def walks_of(worker: Worker, profiler: Profiler) -> dict[str, Walk]:
    """Returns the most common walk of each verb.

    A round in which another thread entered the core does not count, so busy machines take more.
    Raises ``TimeoutError`` if a verb has no walk after ``MOST_ROUNDS`` rounds.
    """
    verbs = Verbs(worker)
    found: dict[str, Counter[Walk]] = defaultdict(Counter)
    for number in range(MOST_ROUNDS):
        names = set()
        for name, call in verbs.steps():
            names.add(name)
            walk = profiler.walk_of(call)
            if walk is not None:
                found[name][walk] += 1
        if number + 1 >= WALKS and names == set(found):
            break
    else:
        raise TimeoutError(f"other threads were in the core in all {MOST_ROUNDS} rounds")
    return {name: walks.most_common(1)[0][0] for name, walks in found.items()}


def times_of(worker: Worker, calls: int) -> dict[str, float]:
    """Returns the median time of each verb, in microseconds."""
    verbs = Verbs(worker)
    times: dict[str, list[int]] = defaultdict(list)
    for _ in range(calls):
        for name, call in verbs.steps():
            began = time.perf_counter_ns()
            call()
            times[name].append(time.perf_counter_ns() - began)
    return {name: round(median(each) / 1000, 1) for name, each in times.items()}


def in_this_process(measure: Callable[[Path], dict[str, Any]]) -> dict[str, Any]:
    """Serves in this thread, and returns the result of ``measure`` in another."""
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def client() -> None:
            sys.setprofile(None)
            try:
                wait_until(lambda: _is_served(folder), timeout=START_SECONDS)
                found.append(measure(folder))
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=client)
        thread.start()
        settings = ("--runtime-dir", name, "--tier1-bytes", MEMORY, "--log-level", "warning")
        serve([*settings, "--drain-grace", "0"])
        thread.join()
    return found[0]


def _is_served(folder: Path) -> bool:
    try:
        with attached_worker(folder) as worker:
            worker.health()
    except Exception:  # noqa: BLE001  # whatever it is, the server is not there yet
        return False
    return True


def count() -> dict[str, Any]:
    """Returns the walks of each verb, by each way."""
    profiler = Profiler()
    threading.setprofile(profiler)

    def measure(folder: Path) -> dict[str, Any]:
        found = {}
        for way, hot_lane in WAYS.items():
            with attached_worker(folder, hot_lane=hot_lane) as worker:
                walks = walks_of(worker, profiler)
                found[way] = {name: walk._asdict() for name, walk in walks.items()}
        return found

    return in_this_process(measure)


def clock(calls: int) -> dict[str, Any]:
    """Returns the median times of each verb, by each way."""

    def measure(folder: Path) -> dict[str, Any]:
        found = {}
        for way, hot_lane in WAYS.items():
            with attached_worker(folder, hot_lane=hot_lane) as worker:
                found[way] = times_of(worker, calls)
        return found

    return in_this_process(measure)


def ask(tree: Path, *arguments: str) -> dict[str, Any]:
    """Runs this script of a tree in a process of its own, and returns its output."""
    path = os.pathsep.join(map(str, (tree, tree / "clients/python", tree / "benchmarks")))
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "0"}
    command = [sys.executable, str(tree / "benchmarks/walk.py"), *arguments]
    result = subprocess.run(  # noqa: S603  # our own program
        command, env=environment, cwd=tree, stdout=subprocess.PIPE, check=True, text=True
    )
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


def measured(trees: dict[str, Path], calls: int, rounds: int) -> dict[str, Any]:
    """Returns walks and times of some trees, which take turns."""
    times: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(rounds):
        for name, tree in list(trees.items())[:: -1 if number % 2 else 1]:
            times[name].append(ask(tree, "--part", "times", "--calls", str(calls)))
    return {
        name: {"walks": ask(tree, "--part", "walks"), "median_us": _medians(times[name])}
        for name, tree in trees.items()
    }


def _medians(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        way: {verb: round(median(each[way][verb] for each in rounds), 1) for verb in verbs}
        for way, verbs in rounds[0].items()
    }


def table(name: str, found: dict[str, Any]) -> str:
    """Returns a tree's figures as lines of text."""
    head = f"{name:<10} {'verb':<8} {'functions':>9} {'files':>6} {'changes':>8}"
    lines = [f"{head} {'in core':>14} {'us':>8}"]
    for way, verbs in found["walks"].items():
        for verb, walk in verbs.items():
            core = "/".join(str(walk[f"core_{field}"]) for field in Walk._fields[:3])
            counted = f"{walk['functions']:>9} {walk['files']:>6} {walk['changes_of_file']:>8}"
            took = found["median_us"][way][verb]
            lines.append(f"{way:<10} {verb:<8} {counted} {core:>14} {took:>8.1f}")
    return "\n".join(lines)


def run(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Take ten seconds.")] = False,
    beside: Annotated[
        Path | None, typer.Option(help="Also measure this other checkout, in turns.")
    ] = None,
    part: Annotated[str | None, typer.Option(hidden=True)] = None,
    calls: Annotated[int, typer.Option(help="Calls of each verb in a round.")] = CALLS,
) -> None:
    """Counts the functions and files of the server's calls, and times them."""
    if part is not None:
        print(json.dumps(count() if part == "walks" else clock(calls)))
        return
    trees = {"here": HERE.parents[1]}
    if beside is not None:
        trees["beside"] = beside.resolve()
    load = machine.load_average()
    found = measured(trees, QUICK_CALLS if quick else calls, 1 if quick else ROUNDS)
    if as_json:
        facts = {**machine.machine_facts(), "load_average_before": load}
        print(json.dumps({"machine": facts, **found}, indent=1))
    else:
        print("\n\n".join(table(name, each) for name, each in found.items()))


if __name__ == "__main__":
    typer.run(run)
