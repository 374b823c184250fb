"""The steps of each of the four scripts.

No script needs another one's results: without any, ``again`` runs every test.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpu_machine.probes.__main__ import ON_THE_DEVICE, ON_THE_HOST
from gpu_machine.results import entries
from gpu_machine.steps import FAILED, TIMED_OUT, Stage, Step

# `-k float16` also matches bfloat16.
DTYPES: Final = {
    "float32": "not float16 and not bfloat16",
    "float16": "float16 and not bfloat16",
    "bfloat16": "bfloat16",
}
SANITIZED: Final = ("cold and split and bfloat16", "decodes and whole", "wide and chosen")
# Probes of free device memory, and of speed: no other step runs beside them.
ALONE: Final = ("mapped", "exporter_killed", "by_descriptor", "registration", "transfer")
# Parts of gpu_kernels.py: if one takes too long, the others still have their results.
KERNEL_PARTS: Final = {"kernels": 150, "engine": 90, "sweep": 120}
PROBE_SECONDS: Final = 60
# Outcomes of tests to repeat. A test that stays at "started" hung or ended its process.
UNFINISHED: Final = ("failed", "started")
UNTIL_THE_END: Final = 3600.0
# A server that runs for so many seconds has found its device. A driver that starts the GPU anew for
# each first process takes some of them.
SERVED_SECONDS: Final = 20


@dataclass(frozen=True, kw_only=True)
class Place:
    """The folders of a script: the checkout, one for its files, and earlier results."""

    checkout: Path
    work: Path
    earlier: Path


def look(place: Place) -> list[Stage]:
    """The machine, the CUDA behaviour that the store needs, the kernels, and pages of the store."""
    machine = (
        Step(name="nvidia-smi", command=("nvidia-smi",), seconds=20),
        _module("imports", 120, "gpu_machine.closure"),
        *(_module(name, 60, "gpu_machine.probes", name) for name in ON_THE_HOST),
    )
    alone = tuple(_probe(name) for name in ALONE)
    probes = tuple(_probe(name) for name in ON_THE_DEVICE if name not in ALONE)
    kernels = (
        (_tests(f"attention {dtype}", 240, "tests/gpu/test_attention.py", "-k", chosen),)
        for dtype, chosen in DTYPES.items()
    )
    store = (
        _server(place),
        _tests("test_device", 400, "tests/gpu/test_device.py"),
    )
    return [
        Stage(60, (machine,)),
        Stage(90, (alone,)),
        Stage(210, (probes, *kernels)),
        Stage(UNTIL_THE_END, (store,)),
    ]


def prove(place: Place) -> list[Stage]:
    """The engine, the demo, everything else in tests/gpu, and both benchmarks, quickly."""
    seen = {"test_attention", "test_device", "test_engine"}
    paths = sorted((place.checkout / "tests" / "gpu").glob("test_*.py"))
    others = tuple(
        _tests(path.stem, 200, path.relative_to(place.checkout).as_posix())
        for path in paths
        if path.stem not in seen
    )
    demo = ("demo", "--device", "cuda:0", "--model", "tiny")
    tests = (
        (_tests("test_engine", 280, "tests/gpu/test_engine.py"),),
        (_module("demo", 150, "inference_worker", *demo), *others),
    )
    benchmarks = tuple(
        _benchmark(place, path.stem, 150, "--quick")
        for path in sorted((place.checkout / "benchmarks").glob("gpu*.py"))
    )
    return [Stage(290, tests), Stage(UNTIL_THE_END, (benchmarks,))]


def measure(place: Place) -> list[Stage]:
    """Speed: of the kernels, of the engine, of what the benchmark compares; then memory errors."""
    profiler = ("ncu", "--clock-control", "none", "--set", "full", "-k", "regex:attend_pages")
    profiled = tuple(
        Step(
            name=f"ncu {kind}",
            command=(*profiler, "--launch-count", "1", *_python("gpu_machine.launch", kind)),
            seconds=60,
        )
        for kind in ("decode", "prefill")
    )
    checked = tuple(
        Step(
            name=f"compute-sanitizer {case}",
            command=(
                "compute-sanitizer",
                "--error-exitcode",
                "99",
                *_pytest("tests/gpu/test_attention.py", "-k", case),
            ),
            seconds=90,
            tests=True,
            environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
        )
        for case in SANITIZED
    )
    kernels, engine, sweep = (
        _benchmark(
            place,
            "gpu_kernels",
            seconds,
            *("--only", part, "--json"),
            output=f"gpu_kernels-{part}.json",
        )
        for part, seconds in KERNEL_PARTS.items()
    )
    whole = _benchmark(place, "gpu", 240, "--json", output="gpu.json")
    return [Stage(UNTIL_THE_END, ((kernels, engine, *profiled, whole, sweep, *checked),))]


def again(place: Place) -> list[Stage]:
    """The steps and tests that failed before, and then the benchmark for the record."""
    tests = {each["test"]: each["outcome"] for each in entries(place.earlier) if _is(each, "test")}
    steps = {each["step"]: each["verdict"] for each in entries(place.earlier) if _is(each, "step")}
    failed = [test for test, outcome in tests.items() if outcome in UNFINISHED]
    known = {
        step.name: step
        for plan in (look, prove, measure)
        for stage in plan(place)
        for lane in stage.lanes
        for step in lane
    }
    others = tuple(
        step
        for name, step in known.items()
        if steps.get(name) in {FAILED, TIMED_OUT} and not step.tests and step.output is None
    )
    lanes: list[tuple[Step, ...]] = [others]
    if failed or not tests:
        lanes.append((_tests("tests again", 400, *(failed or ["tests/gpu"])),))
    whole = _benchmark(place, "gpu", 240, "--json", output="gpu.json")
    return [Stage(300, tuple(lanes)), Stage(UNTIL_THE_END, ((whole,),))]


PLANS: Final[Mapping[str, Callable[[Place], list[Stage]]]] = {
    "look": look,
    "prove": prove,
    "measure": measure,
    "again": again,
}
# The time limit of a script in minutes, without ``--minutes``.
MINUTES: Final = {"look": 8.0, "prove": 8.0, "measure": 9.0, "again": 8.0}


def _is(entry: Mapping[str, object], kind: str) -> bool:
    return entry.get("kind") == kind


def _python(module: str, *arguments: str) -> Iterator[str]:
    yield from (sys.executable, "-m", module, *arguments)


def _module(name: str, seconds: float, module: str, *arguments: str) -> Step:
    return Step(name=name, command=(*_python(module, *arguments),), seconds=seconds)


def _probe(name: str) -> Step:
    return _module(f"probe {name}", PROBE_SECONDS, "gpu_machine.probes", name)


def _pytest(*arguments: str) -> Iterator[str]:
    # Versions other than ours may warn; that is no failure.
    settings = ("-rs", "-W", "default", "--timeout=120", "--durations=5")
    plugins = ("-p", "gpu_machine.pytest_record", "-p", "no:cacheprovider")
    return _python("pytest", *settings, *plugins, *arguments)


def _tests(name: str, seconds: float, *arguments: str) -> Step:
    return Step(name=name, command=(*_pytest(*arguments),), seconds=seconds, tests=True)


def _benchmark(
    place: Place, name: str, seconds: float, *arguments: str, output: str | None = None
) -> Step:
    script = str(place.checkout / "benchmarks" / f"{name}.py")
    command = (sys.executable, script, *arguments)
    asked = " ".join(arguments)
    return Step(name=f"{name} {asked}", command=command, seconds=seconds, output=output)


def _server(place: Place) -> Step:
    """Returns a server that SIGTERM ends, with status 0 only if it found the device."""
    settings = ("--device", "cuda:0", "--tier1-bytes", "1GiB")
    folder = ("--runtime-dir", str(place.work / "runtime"))
    bounded = ("timeout", "--preserve-status", str(SERVED_SECONDS))
    command = (*bounded, *_python("kvstore", *settings, *folder))
    return Step(name="server", command=command, seconds=60)
