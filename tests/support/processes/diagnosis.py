"""The findings of kvstore-ctl doctor about a store."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kvstore_ctl.app import app

# Of those that are asked of the store itself.
SERVER_CHECKS = {"liveness", "readiness", "answers"}


def diagnose(runtime_dir: Path) -> tuple[int, dict[str, Any]]:
    """Runs the command and returns its exit status, and each check's finding by its name."""
    result = CliRunner().invoke(app, ["doctor", "--runtime-dir", str(runtime_dir), "--json"])
    answer = json.loads(result.stdout)
    return result.exit_code, {each["check"]: each for each in answer["checks"]}


def outcomes(found: dict[str, Any], names: set[str]) -> set[str]:
    """Returns the outcomes of these checks."""
    return {found[name]["outcome"] for name in names}
