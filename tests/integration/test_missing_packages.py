"""The programs where a package that they are made of is not installed."""

import subprocess
import sys

import pytest

PATIENCE = 60.0
BLOCKED = (
    "import sys; sys.modules[{missing!r}] = None; sys.argv[1:] = ['--version']; "
    "from {package}.__main__ import main; sys.exit(main())"
)


def start(package: str, missing: str) -> "subprocess.CompletedProcess[str]":
    """Asks a program for its version without a module, and waits for its end."""
    command = [sys.executable, "-c", BLOCKED.format(package=package, missing=missing)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize(
    ("package", "extra", "missing"),
    [
        ("kvstore", "server", "pydantic_settings"),
        ("kvstore", "server", "numpy"),
        ("kvstore_ctl", "ctl", "typer"),
        ("kvstore_ctl", "ctl", "rich"),
    ],
)
def test_a_missing_extra_is_named(package: str, extra: str, missing: str) -> None:
    """One line names what to install, and the status is 2."""
    done = start(package, missing)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert f"needs {missing}," in line
    assert f"pip install '.[{extra}]'" in line


@pytest.mark.parametrize(
    ("package", "missing", "name"),
    [
        ("kvstore", "kvstore.config.settings", "kvstore-server"),
        ("kvstore_ctl", "kvstore_ctl.app", "kvstore-ctl"),
    ],
)
def test_a_module_of_ours_that_is_missing_is_no_extra(
    package: str, missing: str, name: str
) -> None:
    """A missing module of the project is a fault of the installation, with a traceback."""
    done = start(package, missing)
    assert (done.returncode, "ModuleNotFoundError" in done.stderr) == (1, True)
    assert start(package, "nothing.of.the.kind").stdout.startswith(f"{name} ")
