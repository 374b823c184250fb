"""A plugin of pytest that records each test as it begins and as it ends.

It writes one JSON line for each to the file in ``$KVSTORE_RECORDS``. So a killed process leaves its
results behind, and the test that it was in.
"""

import json
import os
from pathlib import Path

import pytest

from gpu_machine.runner import RECORDED_STEP, RECORDS

LONGEST_WHY = 300


def pytest_runtest_logstart(nodeid: str) -> None:
    """Records that a test begins."""
    _record(nodeid, "started", 0.0, "it never ended")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Records how a test ended; a failure of its set-up or teardown too."""
    if report.when == "call" or report.outcome != "passed":
        _record(report.nodeid, report.outcome, report.duration, _why(report))


def _why(report: pytest.TestReport) -> str:
    """Returns a line that says why a test was skipped or failed."""
    if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
        return str(report.longrepr[2]).removeprefix("Skipped: ")[:LONGEST_WHY]
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report.longrepr or "")
    return next(iter(text.strip().splitlines()), "")[:LONGEST_WHY]


def _record(test: str, outcome: str, seconds: float, why: str) -> None:
    entry = {
        "kind": "test",
        "step": os.environ.get(RECORDED_STEP, ""),
        "test": test,
        "outcome": outcome,
        "seconds": round(seconds, 2),
        "why": why,
    }
    if path := os.environ.get(RECORDS):
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
