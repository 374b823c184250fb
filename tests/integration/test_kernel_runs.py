"""A run of tests/kernels fails unless each of its tests runs."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "kernels" / "conftest.py"
# Statuses of pytest.
PASSED, FAILED, INTERRUPTED, NONE_RAN = 0, 1, 2, 5


def status(folder: Path, test: str, interpreted: str) -> int:
    """Returns pytest's status for a folder with one test and the conftest of tests/kernels."""
    shutil.copy(CONFTEST, folder)
    (folder / "test_one.py").write_text(test, encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder)],
        cwd=folder,
        env={**os.environ, "TRITON_INTERPRET": interpreted},
        capture_output=True,
        text=True,
        check=False,
    )
    return result.returncode


@pytest.mark.parametrize(
    ("test", "interpreted", "ends"),
    [
        ("def test_one(): pass", "1", PASSED),
        ("def test_one(): pass", "", NONE_RAN),
        ("import pytest\ndef test_one(): pytest.skip('why')", "1", FAILED),
        ("import pytest\npytest.importorskip('no_such_module')", "1", INTERRUPTED),
        ("import no_such_module", "1", INTERRUPTED),
    ],
    ids=["passes", "elsewhere", "skipped", "file skipped", "broken import"],
)
def test_a_run_without_all_tests_fails(
    tmp_path: Path, test: str, interpreted: str, ends: int
) -> None:
    """A run ends with status 0 only if its tests ran."""
    assert status(tmp_path, test, interpreted) == ends
