"""A fault put into a copy of the code on purpose."""

from importlib.util import cache_from_source
from pathlib import Path
from typing import Protocol


class Change(Protocol):
    """In a file, ``old`` (which stands there once) becomes ``new``; "unchanged" changes nothing."""

    @property
    def name(self) -> str:
        """What the fault is called."""
        ...

    @property
    def old(self) -> str:
        """What stands there."""
        ...

    @property
    def new(self) -> str:
        """What takes its place."""
        ...


def put_in(change: Change, path: Path) -> None:
    """Make the change in the file, which MUST have its place exactly once."""
    if change.name == "unchanged":
        return
    text = path.read_text(encoding="utf-8")
    assert text.count(change.old) == 1, f"{change.name} does not fit {path.name} any more"
    path.write_text(text.replace(change.old, change.new), encoding="utf-8")
    # It may have come with what it was compiled to.
    Path(cache_from_source(path)).unlink(missing_ok=True)
