"""docs/commands.md says of kvstore-worker what the program says."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[4] / "docs"


def test_the_page_is_in_step_with_the_commands() -> None:
    """It is what docs/commands.py makes of every command's help."""
    script = runpy.run_path(str(DOCS / "commands.py"))
    committed = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert committed == script["page"](), "run docs/commands.py"
