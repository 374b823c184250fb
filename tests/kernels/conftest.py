"""Tests of Triton's kernels and of cupy's calls, in `.venv-kernels` alone: by `make kernels`.

A run sets $TRITON_INTERPRET before anything imports Triton; torch and transformers import it too.
Other runs do not collect these tests. A skipped test counts as a failure.
"""

import os
from collections.abc import Generator

import pytest

IS_KERNEL_RUN = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = [] if IS_KERNEL_RUN else ["test_*.py"]
if IS_KERNEL_RUN:
    # With a driver, calls that should be refused would be carried out on a real device.
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

Reports = Generator[None, pytest.TestReport, pytest.TestReport]
Collections = Generator[None, pytest.CollectReport, pytest.CollectReport]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Reports:
    """Turns a skip into a failure."""
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Collections:
    """Turns a skip of a whole file into a failure."""
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.skipped:
        report.outcome = "failed"
        report.longrepr = f"make kernels skips nothing, and this was skipped: {report.longrepr}"
