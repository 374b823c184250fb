"""Steps of a script: programs with a time limit each, in lanes that run side by side."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

PASSED: Final = "passed"
FAILED: Final = "failed"
TIMED_OUT: Final = "timed out"
MISSING: Final = "missing"
SKIPPED: Final = "skipped"
LEFT_OUT: Final = "left out"
NO_DEVICE: Final = "no CUDA device"


@dataclass(frozen=True, kw_only=True)
class Step:
    """A program that answers a question. Its failure stops no other step.

    ``seconds`` is its time limit. With ``output`` its standard output goes into a file of that name
    among the results, which appears once the program has ended with status 0. ``tests`` says that
    it is pytest, which records each test.
    """

    name: str
    command: tuple[str, ...]
    seconds: float
    output: str | None = None
    tests: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stage:
    """Lanes that run at once, each its steps in order; the next stage begins when all ended.

    No step of a stage runs on after ``seconds`` of the stage.
    """

    seconds: float
    lanes: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True)
class Outcome:
    """The end of a step: one of the words above, or the answer of a probe.

    ``why`` is one line, ``facts`` the last JSON object that the program printed, or the counts of
    tests.
    """

    step: str
    verdict: str
    seconds: float
    why: str
    facts: Mapping[str, Any]
