"""The naive model of copies: a dictionary a tier, and who holds which of them.

A hold protects, in each tier, every copy of its path down to the deepest that it was
handed there.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

Slot = tuple[int, int]
Path = list[tuple[bytes, Slot]]
FIRST, LOWER = 1, 2


class Held(Protocol):
    """A path, with the slots that were handed out; ``kept`` are those that are detached."""

    path: Path
    kept: set[Slot]


@dataclass
class ModelMove:
    """A move under way, to ``tier``: its path, and (prefix, source, target) of each page."""

    tier: int
    path: Path
    pages: list[tuple[bytes, Slot, Slot]]
    kept: set[Slot] = field(default_factory=set)


@dataclass
class Copies:
    """The cached pages: the slot of each in tier 1 and in tier 2, and the moves under way."""

    first: dict[bytes, Slot] = field(default_factory=dict)
    lower: dict[bytes, Slot] = field(default_factory=dict)
    moves: dict[int, ModelMove] = field(default_factory=dict)

    @property
    def cached(self) -> dict[bytes, Slot]:
        """Every cached page with its nearest copy."""
        return self.lower | self.first

    def in_tier(self, tier: int) -> dict[bytes, Slot]:
        """Returns the copies in a tier."""
        return self.first if tier == FIRST else self.lower

    def has(self, prefix: bytes, slot: Slot) -> bool:
        """Returns whether a slot has a copy of a cached page."""
        return slot in (self.first.get(prefix), self.lower.get(prefix))

    def usable_copy(self, prefix: bytes, extents: Iterable[int]) -> Slot | None:
        """Returns the nearest copy of a page in some extents, or None."""
        for copies in (self.first, self.lower):
            slot = copies.get(prefix)
            if slot is not None and slot[0] in extents:
                return slot
        return None

    def attached(self, path: Path) -> Path:
        """Returns the leading part of a held path that the index still has."""
        kept: Path = []
        for prefix, slot in path:
            if not self.has(prefix, slot):
                break
            kept.append((prefix, slot))
        return kept

    def protected(self, path: Path, tier: int) -> Iterator[tuple[bytes, Slot]]:
        """Yields what a hold on cached pages protects in a tier: each page and its copy there."""
        copies = self.in_tier(tier)
        ends = [len(prefix) for prefix, slot in path if copies.get(prefix) == slot]
        for prefix, _ in path:
            if prefix in copies and len(prefix) <= max(ends, default=0):
                yield prefix, copies[prefix]

    def held_in(self, paths: Iterable[Path], tier: int) -> set[bytes]:
        """Returns the pages whose copies in a tier some holds protect."""
        attached = (self.attached(path) for path in paths)
        return {prefix for path in attached for prefix, _ in self.protected(path, tier)}

    def take_out(self, gone: Iterable[bytes], holds: Iterable[Held]) -> None:
        """Removes pages with all their copies; what holds protect is kept by them."""
        going = set(gone)
        for hold in holds:
            part = [(p, slot) for p, slot in self.attached(hold.path) if p in going]
            for tier in (FIRST, LOWER):
                hold.kept |= {slot for _, slot in self.protected(part, tier)}
        for prefix in going:
            self.first.pop(prefix, None)
            self.lower.pop(prefix, None)

    def judge_dropped(self, now: dict[bytes, Slot], tier: int, held: set[bytes]) -> set[bytes]:
        """Takes over what is left in a tier, after judging what went; returns its pages."""
        before = self.in_tier(tier)
        gone = set(before) - set(now)
        assert not gone & held, "a held page was evicted"
        for prefix, slot in now.items():
            assert before.get(prefix) == slot, "eviction changed a page"
            assert not any(len(p) < len(prefix) and prefix.startswith(p) for p in gone), (
                "a page was evicted before its continuation"
            )
        before.clear()
        before.update(now)
        return gone
