"""Rules for every command of kvstore-ctl."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from kvstore_ctl.app import app
from kvstore_ctl.console import EXIT_REFUSED, EXIT_USAGE, confirm

# Prints no data: events of its own form are its own.
COMMANDS = {"bench", "doctor", "evict", "health", "identity", "leases", "namespaces", "peek"}
COMMANDS |= {"pin", "pins", "replay", "savings", "stats", "token", "token new", "top", "tree"}
COMMANDS |= {"page", "unpin"}
DOCUMENT = Path(__file__).parents[3] / "docs" / "ctl.md"


def commands() -> Iterator[tuple[str, Any]]:
    """Yields every command by its name, including those of groups."""
    group: Any = typer.main.get_command(app)
    for name, command in group.commands.items():
        yield name, command
        below = getattr(command, "commands", {})
        yield from ((f"{name} {each}", below[each]) for each in below)


FOUND = dict(commands())
# Prints an address, and serves the data as a web page.
NO_DATA = {"page"}


def test_all_commands_are_there() -> None:
    """No command is missing."""
    assert set(FOUND) >= COMMANDS


@pytest.mark.parametrize("name", sorted(FOUND.keys() - NO_DATA))
def test_each_command_has_json(name: str) -> None:
    """A command that prints data also prints it as JSON, and has a help text."""
    command = FOUND[name]
    options = {option for each in command.params for option in each.opts}
    assert "--json" in options
    assert command.help


@pytest.mark.parametrize("name", FOUND)
def test_each_command_is_documented(name: str) -> None:
    """docs/ctl.md has a heading for each command."""
    assert f"\n### {name}\n" in DOCUMENT.read_text(encoding="utf-8")


def test_the_list_of_commands_says_where_one_deletes() -> None:
    """The list of commands names those that delete, although they are part of a group."""
    assert "delete" in CliRunner(env={"COLUMNS": "200"}).invoke(app, ["--help"]).output


@pytest.mark.parametrize("command", ["top --interval", "health --timeout"])
def test_a_time_without_end_is_a_wrong_command_line(command: str) -> None:
    """An infinite time is refused as a usage error, because the kernel accepts none."""
    assert CliRunner().invoke(app, [*command.split(), "inf"]).exit_code == EXIT_USAGE


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    """A shell gets the commands with a prefix without a store."""
    environment = {
        **os.environ,
        "_KVSTORE_CTL_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": "kvstore-ctl na",
        "COMP_CWORD": "1",
        "_TYPER_COMPLETE_ARGS": "kvstore-ctl na",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    code = "import sys; sys.argv[0] = 'kvstore-ctl'; from kvstore_ctl.app import main; main()"
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert "namespaces" in told.stdout, told
    assert "leases" not in told.stdout


def test_a_question_without_a_stdin_is_not_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A closed stdin refuses a question, like a stdin at its end."""
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(typer.Exit) as ended:
        confirm("Do it?")
    assert ended.value.exit_code == EXIT_REFUSED
    assert "repeat with --yes" in capsys.readouterr().err
