"""How much was copied between tiers, and how long copies were under way."""

from threading import Lock
from typing import NamedTuple

from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.tiers.moves import Move


class MoveCounts(NamedTuple):
    """Copies in one direction: what was copied, what was not, and seconds under way."""

    pages: int = 0
    bytes: int = 0
    failed_pages: int = 0
    seconds: float = 0.0


class MoveLedger:
    """Counts copies by the tier that they go to. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._counts = {FIRST: MoveCounts(), LOWER: MoveCounts()}

    def note(self, moves: list[Move], whole: list[bool], seconds: float) -> None:
        """Count moves that were tried together, each whole or not; the time is shared by pages."""
        pages = max(sum(len(each.transfers) for each in moves), 1)
        with self._mutex:
            for move, copied in zip(moves, whole, strict=True):
                count = len(move.transfers)
                before = self._counts[move.tier]
                self._counts[move.tier] = MoveCounts(
                    before.pages + count * copied,
                    before.bytes + count * copied * move.namespace.layout.page_bytes,
                    before.failed_pages + count * (not copied),
                    before.seconds + seconds * count / pages,
                )

    def read(self) -> dict[tuple[int, int], MoveCounts]:
        """Return the counts of now, by the tiers that pages were copied from and to."""
        with self._mutex:
            return {(FIRST + LOWER - tier, tier): each for tier, each in self._counts.items()}
