"""The naive model of tier 3: a set of prefixes, and pages on their way to it and from it."""

from dataclasses import dataclass, field

from naive.copies import Path, Slot


@dataclass
class ModelDiskWrite:
    """Pages on their way to the disk: their path, and through which page they are written."""

    path: Path
    written: int
    kept: set[Slot] = field(default_factory=set)


@dataclass
class ModelDiskRead:
    """Pages on their way from the disk: what is above them, and the first ``good`` are read well.

    ``removals`` were made when it began. ``planned`` are the pages that it is to bring, of which
    the first have slots. It ``is_cut`` after pages that could not be published.
    """

    path: Path
    pages: Path
    good: int
    removals: int
    planned: list[bytes]
    is_cut: bool = False
    kept: set[Slot] = field(default_factory=set)


@dataclass
class Disk:
    """The pages on the disk, and those that must leave it."""

    prefixes: set[bytes] = field(default_factory=set)
    forbidden: list[bytes] = field(default_factory=list)
    # Removals of pages that may not return, so far.
    removals: int = 0
    writes: dict[int, ModelDiskWrite] = field(default_factory=dict)
    reads: dict[int, ModelDiskRead] = field(default_factory=dict)

    def forbid(self, prefix: bytes) -> None:
        """Notes that what holds the last token of a prefix may not return."""
        self.removals += 1
        self.forbidden.append(prefix)

    def lose(self, prefix: bytes) -> None:
        """Forgets a page, and all pages after it."""
        self.prefixes = {each for each in self.prefixes if not each.startswith(prefix)}
