"""kvstore-ctl, run in this process against a store."""

import json
from typing import Any

from typer.testing import CliRunner, Result

from kvstore_client.testing import RunningStore
from kvstore_ctl.app import app


def run(store: RunningStore, *arguments: str, typed: str | bytes = "") -> Result:
    """Runs a command against the store, with ``typed`` on its standard input."""
    arguments = (*arguments, "--runtime-dir", str(store.runtime_dir))
    return CliRunner().invoke(app, arguments, input=typed)


def run_json(store: RunningStore, *arguments: str) -> Any:  # noqa: ANN401  # each command's own
    """Runs a command with --json and returns what it printed."""
    result = run(store, *arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)
