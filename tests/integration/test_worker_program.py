"""The worker's program without one of its packages."""

import subprocess
import sys

import pytest

PATIENCE = 60.0
BLOCKED = "import runpy, sys; sys.modules[{missing!r}] = None; {start}"
STARTS = {
    "module": "runpy.run_module('inference_worker', run_name='__main__')",
    "script": "from inference_worker.__main__ import main; main()",
}


SERVE = ["kvstore-worker", "serve", "--help"]
DEMO = ["kvstore-worker", "demo", "--help"]


def start(code: str) -> "subprocess.CompletedProcess[str]":
    """Runs Python to its end."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("how", STARTS)
def test_a_missing_extra_is_named(how: str) -> None:
    """A missing transformers or torch is named with what to install, in one line and status 2."""
    for missing in ("torch", "transformers"):
        done = start(BLOCKED.format(missing=missing, start=STARTS[how]))
        assert done.returncode == 2
        assert done.stdout == ""
        # Before it may stand what transformers has to say.
        line = done.stderr.splitlines()[-1]
        assert "Traceback" not in done.stderr
        assert f"needs {missing}," in line
        assert "pip install '.[worker]'" in line


def test_only_serve_needs_an_http_server() -> None:
    """Without starlette or uvicorn only `serve` fails, and names the missing package."""
    for missing in ("starlette", "uvicorn"):
        code = BLOCKED.format(missing=missing, start=f"sys.argv = {SERVE}; {STARTS['module']}")
        done = start(code)
        assert done.returncode == 2
        assert f"needs {missing}," in done.stderr
        assert "Traceback" not in done.stderr
        code = BLOCKED.format(missing=missing, start=f"sys.argv = {DEMO}; {STARTS['module']}")
        done = start(code)
        assert done.returncode == 0, done.stderr
        assert "--device" in done.stdout


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    """A missing module of the project itself is an error with a traceback."""
    missing = "inference_worker.commands.program"
    done = start(BLOCKED.format(missing=missing, start=STARTS["script"]))
    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
