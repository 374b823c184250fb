"""A test run in which a process of xdist dies: it ends, and never passes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
LIMIT = 120.0
# Of one process of two.
DYING_HOOK = """
@pytest.hookimpl(tryfirst=True)
def {}(session: pytest.Session) -> None:
    if os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        os._exit(1)
"""
TESTS_FAILED = 1


def run(folder: Path, hook: str = "") -> tuple[int, str]:
    """Runs a test project in two processes. Returns its status and output."""
    conftest = (TESTS / "conftest.py").read_text(encoding="utf-8")
    (folder / "conftest.py").write_text(conftest + hook, encoding="utf-8")
    settings = ("-c", str(TESTS.parent / "pyproject.toml"), "--rootdir", str(folder))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *settings, "-p", "no:cacheprovider", "-n", "2", "."],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if "XDIST" not in name},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("number", [2, 5])
def test_a_run_ends_with_the_test_that_killed_its_process(tmp_path: Path, number: int) -> None:
    """A run ends if a test kills its process, where xdist 3.8 would wait forever."""
    bodies = {number: "os._exit(1)"}
    (tmp_path / "test_dying.py").write_text(
        "import os\n" + "".join(f"def test_{n}(): {bodies.get(n, 'pass')}\n" for n in range(6))
    )
    status, said = run(tmp_path)
    assert status == TESTS_FAILED, said
    assert f"crashed while running 'test_dying.py::test_{number}'" in said
    assert "worker restarting disabled" in said


@pytest.mark.usefixtures("executed")
@pytest.mark.parametrize("hook", ["pytest_collection_finish", "pytest_sessionfinish"])
def test_a_process_that_dies_in_no_test_fails_the_run(tmp_path: Path, hook: str) -> None:
    """A process that dies outside its tests fails the run, where xdist would let it pass."""
    (tmp_path / "test_well.py").write_text("def test_1(): pass\ndef test_2(): pass\n")
    status, said = run(tmp_path, DYING_HOOK.format(hook))
    assert status == TESTS_FAILED, said
    assert "worker gw1 crashed and worker restarting disabled" in said
