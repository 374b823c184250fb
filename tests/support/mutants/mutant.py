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


def changed(change: Change, path: Path) -> str:
    """Returns the file's text with the change, which MUST have its place exactly once."""
    text = path.read_text(encoding="utf-8")
    if change.name == "unchanged":
        return text
    assert text.count(change.old) == 1, f"{change.name} does not fit {path.name} any more"
    return text.replace(change.old, change.new)


def put_in(change: Change, path: Path) -> None:
    """Makes the change in the file."""
    path.write_text(changed(change, path), encoding="utf-8")
    # It may have come with what it was compiled to.
    Path(cache_from_source(path)).unlink(missing_ok=True)
