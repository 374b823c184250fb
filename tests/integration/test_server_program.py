"""The server's program where what it is made of is not installed."""

import subprocess
import sys

PATIENCE = 60.0
BLOCKED = (
    "import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = ['--version']; "
    "from kvstore.start import main; sys.exit(main())"
)


def start(missing: str) -> "subprocess.CompletedProcess[str]":
    """Asks the script for its version where a module is missing, and waits for its end."""
    command = [sys.executable, "-c", BLOCKED.format(missing=missing)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_missing_extra_is_named() -> None:
    """It says what to install, in a line and with status 2, as without the client's alone."""
    for missing in ("pydantic_settings", "numpy"):
        done = start(missing)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert f"needs {missing}," in line
        assert "pip install '.[server]'" in line


def test_a_module_of_ours_that_is_missing_is_no_extra() -> None:
    """That is a fault of the installation, with a traceback; with all it says its version."""
    done = start("kvstore.config.settings")
    assert (done.returncode, "ModuleNotFoundError" in done.stderr) == (1, True)
    assert start("nothing.of.the.kind").stdout.startswith("kvstore-server ")
