"""The programs where a package that they are made of is not installed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from processes.forked_programs import ANEW, OURS

SUPPORT = Path(__file__).parents[1] / "support"
PATIENCE = 60.0
BLOCKED = "import runpy, sys; sys.modules[{missing!r}] = None; sys.argv[1:] = {words}; {start}"
SCRIPT = "from {}.__main__ import main; sys.exit(main())"
STARTS = {
    "kvstore-server": SCRIPT.format("kvstore"),
    "kvstore-ctl": SCRIPT.format("kvstore_ctl"),
    "kvstore-worker": SCRIPT.format("inference_worker"),
}
# The same code as of kvstore-worker, in forks of a process that has imported torch.
FORKED = "python -m inference_worker"
EXTRAS = {
    "kvstore-server": ("server", ("pydantic_settings", "numpy")),
    "kvstore-ctl": ("ctl", ("typer", "rich")),
    "kvstore-worker": ("worker", ("torch", "transformers")),
    FORKED: ("worker", ("torch", "transformers")),
}


def start(program: str, missing: str, *words: str) -> "subprocess.CompletedProcess[str]":
    """Runs a program without a module to its end; asks for its version unless told otherwise."""
    words = words or ("--version",)
    if program == FORKED:
        arguments = ["-m", "processes.without_package", missing, "inference_worker", *words]
    else:
        code = BLOCKED.format(missing=missing, words=list(words), start=STARTS[program])
        arguments = ["-c", code]
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": str(SUPPORT), ANEW: " ".join([*OURS, missing])},
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize(
    ("program", "missing"),
    [(program, each) for program, (_, missing) in EXTRAS.items() for each in missing],
)
def test_a_missing_extra_is_named(program: str, missing: str) -> None:
    """One line names what to install, and the status is 2."""
    done = start(program, missing)
    assert (done.returncode, done.stdout) == (2, "")
    *others, line = done.stderr.splitlines()
    extra, _ = EXTRAS[program]
    # transformers may have something to say first.
    assert extra == "worker" or not others
    assert "Traceback" not in done.stderr
    assert f"needs {missing}," in line
    assert f"pip install '.[{extra}]'" in line


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_only_serve_needs_an_http_server(missing: str) -> None:
    """Without starlette and uvicorn `serve` names the missing one; other commands run."""
    done = start(FORKED, missing, "serve", "--help")
    assert done.returncode == 2
    assert f"needs {missing}," in done.stderr
    assert "Traceback" not in done.stderr
    done = start(FORKED, missing, "demo", "--help")
    assert done.returncode == 0, done.stderr
    assert "--device" in done.stdout


@pytest.mark.parametrize(
    ("program", "missing"),
    [
        ("kvstore-server", "kvstore.config.settings"),
        ("kvstore-ctl", "kvstore_ctl.app"),
        ("kvstore-worker", "inference_worker.commands.program"),
    ],
)
def test_a_module_of_ours_that_is_missing_is_no_extra(program: str, missing: str) -> None:
    """A missing module of the project is a fault of the installation, with a traceback."""
    done = start(program, missing)
    assert (done.returncode, "ModuleNotFoundError" in done.stderr) == (1, True)


@pytest.mark.parametrize("program", ["kvstore-server", "kvstore-ctl"])
def test_a_program_that_lacks_nothing_says_its_version(program: str) -> None:
    """The name of the program comes first."""
    assert start(program, "nothing.of.the.kind").stdout.startswith(f"{program} ")
