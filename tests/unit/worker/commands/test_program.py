"""The program reports its version and mistakes in its command line."""

import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from inference_worker.commands.program import app
from kvstore import __version__


def run(*arguments: str) -> tuple[int, str]:
    """Runs the program in this process. Returns its status and its output as one line."""
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, arguments)
    return result.exit_code, " ".join(result.output.split())


def test_the_version_is_shown() -> None:
    """The program prints its version and does nothing else."""
    assert run("--version") == (0, f"kvstore-worker {__version__}")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--page-tokens", "0", "x"), ("--page-tokens", "1")),
        (("--longest", "0", "x"), ("--longest", "1")),
        (("--threads", "0", "x"), ("--threads", "1")),
        (("--max-tokens", "0", "x"), ("--max-tokens", "1")),
        (("--top-p", "0", "x"), ("it must be above 0",)),
        (("--seed", "-1", "x"), ("seed is -1",)),
        (("",), ("the prompt is empty",)),
        (("--longest", "4", "Hello"), ("the prompt has 5 tokens", "longest sequence has 4")),
    ],
)
def test_a_wrong_command_line_is_named(
    arguments: tuple[str, ...], said: tuple[str, ...], tmp_path: Path
) -> None:
    """The program names the wrong option or the mistake, with the status of usage errors."""
    status, text = run("generate", "--model", "tiny", "--store", str(tmp_path), *arguments)
    assert status == 2
    assert [each for each in said if each not in text] == []


@pytest.mark.parametrize("command", [*get_command(app).commands, "experiment chat-turns", ""])
def test_help_fits_a_terminal(command: str) -> None:
    """Help fits 80 columns. A flag takes no value, no choice is broken, and no markup is left."""
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*command.split(), "--help"])
    lines = [line for line in result.output.splitlines() if " --help " not in line]
    assert lines
    assert [line for line in lines if "<bool>" in line or "``" in line] == []
    assert [line for line in lines if re.search("<[a-z][^>]*$", line)] == []


def test_a_model_that_is_not_there_is_a_line() -> None:
    """``run`` reports a missing model as one line, like the other commands."""
    status, text = run("run", "--model", "/nowhere")
    assert status == 1
    assert "/nowhere is neither a folder" in text
