"""The findings of kvstore-ctl doctor about a store."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from kvstore_ctl.app import app

DOCUMENTED = Path(__file__).parents[3] / "docs" / "ctl.md"
# Of those that are asked of the store itself.
SERVER_CHECKS = {"liveness", "readiness", "answers"}


def diagnose(runtime_dir: Path) -> tuple[int, dict[str, Any]]:
    """Runs the command and returns its exit status, and each check's finding by its name."""
    result = CliRunner().invoke(app, ["doctor", "--runtime-dir", str(runtime_dir), "--json"])
    answer = json.loads(result.stdout)
    found = {each["check"]: each for each in answer["checks"]}
    assert found.keys() <= documented_checks()
    return result.exit_code, found


def documented_checks() -> set[str]:
    """Returns the checks in the table of the command's page."""
    page = DOCUMENTED.read_text(encoding="utf-8")
    rows = page.partition("| check | subject |")[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in row.split("|")[1].strip().split(", ")}


def outcomes(found: dict[str, Any], names: set[str]) -> set[str]:
    """Returns the outcomes of these checks."""
    return {found[name]["outcome"] for name in names}
