"""docs/commands.md agrees with the help of kvstore-worker."""

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[4] / "docs"


def test_the_page_is_in_step_with_the_commands() -> None:
    """The page is what docs/commands.py writes from every command's help."""
    script = runpy.run_path(str(DOCS / "commands.py"))
    committed = (DOCS / "commands.md").read_text(encoding="utf-8")
    assert committed == script["page"](), "run docs/commands.py"
