"""kvstore-ctl without a package of its extra."""

import subprocess
import sys

import pytest

PATIENCE = 60.0
BLOCKED = (
    "import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = ['--version']; "
    "from kvstore_ctl.__main__ import main; main()"
)


def start(missing: str) -> "subprocess.CompletedProcess[str]":
    """Runs the script's --version without one module, to its end."""
    command = [sys.executable, "-c", BLOCKED.format(missing=missing)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("missing", ["typer", "rich"])
def test_a_missing_extra_is_named(missing: str) -> None:
    """A missing package is named in one line with what to install, and status 2."""
    done = start(missing)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"needs {missing}," in line
    assert "pip install '.[ctl]'" in line


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    """A missing module of the project itself is an error with a traceback."""
    done = start("kvstore_ctl.app")
    assert (done.returncode, "ModuleNotFoundError" in done.stderr) == (1, True)
    assert start("nothing.of.the.kind").stdout.startswith("kvstore-ctl ")
