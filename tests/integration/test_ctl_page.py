"""The commands in docs/ctl.md print what that page shows."""

import shlex
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from docs.snippets import Reader, require_output, snippets
from kvstore_client.testing import running_store
from kvstore_ctl.app import app

PAGE = Path(__file__).parents[2] / "docs" / "ctl.md"
PROGRAM = ".venv/bin/kvstore-ctl "
# A command with these is a shell's.
OF_A_SHELL = frozenset("|>$")


class QuickReader(Reader):
    """Runs the page's commands in this process, because each start takes a while."""

    def _run_command(self, place: str, command: str, output: str) -> None:
        if not command.startswith(PROGRAM) or OF_A_SHELL & set(command):
            super()._run_command(place, command, output)
            return
        arguments = shlex.split(command.removeprefix(PROGRAM))
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, f"{place}: {command}\n{result.output}"
        require_output(place, output, result.stdout)


def test_the_page_can_be_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the page works on a store with the pages of its code."""
    with tempfile.TemporaryDirectory(prefix="kvstore-") as made:
        folder = Path(made)
        environment = {"KVSTORE_RUNTIME_DIR": str(folder / "run")}
        monkeypatch.setenv("KVSTORE_RUNTIME_DIR", environment["KVSTORE_RUNTIME_DIR"])
        monkeypatch.chdir(folder)
        with running_store("--tier1-bytes", "64MiB", runtime_dir=folder / "run"):
            reader = QuickReader(folder, environment)
            try:
                for snippet in snippets(PAGE):
                    reader.run(snippet)
            finally:
                reader.close()
