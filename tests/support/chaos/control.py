"""The memory that the processes of a chaos run share: a few words in a file."""

import mmap
import struct
from enum import IntEnum
from pathlib import Path

# Seconds added to the server's clock; the phase; the server's next fault; the load's place.
_CLOCK = struct.Struct("<d")
_WORD = struct.Struct("<I")
_CLOCK_AT, _PHASE_AT, _POINT_AT, _ACTION_AT, _BEGUN_AT = 0, 8, 12, 16, 20
SIZE = 4096

# Methods of the store at which the server can be struck, each before and after.
SERVER_STEPS = (
    *("grant", "bind", "open_namespace", "acknowledge", "renew", "match", "acquire"),
    *("reserve", "insert", "release", "abort", "revoke"),
)
SERVER_POINTS = tuple(f"{step}.{when}" for step in SERVER_STEPS for when in ("before", "after"))
# What happens to the server there; a cut ends all connections that it has.
SERVER_ACTIONS = ("kill", "stop", "cut")


class Phase(IntEnum):
    """The phases of a run, in their order."""

    FAULTS = 0
    """Workers work, and everything that can happen to them does."""
    CALM = 1
    """Workers work and nothing happens to them any more."""
    END = 2
    """Workers give back what they hold and end."""
    LAST = 3
    """Workers that still hold something on purpose end."""


class Control:
    """The shared words, at ``path``. One process writes each; the server clears the fault."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.exists():
            path.write_bytes(bytes(SIZE))
        with path.open("r+b") as file:
            self._words = mmap.mmap(file.fileno(), SIZE)

    @property
    def phase(self) -> Phase:
        """The phase of the run."""
        return Phase(_WORD.unpack_from(self._words, _PHASE_AT)[0])

    @phase.setter
    def phase(self, phase: Phase) -> None:
        _WORD.pack_into(self._words, _PHASE_AT, phase)

    @property
    def begun(self) -> int:
        """The number of the request at which the load's window begins."""
        number: int = _WORD.unpack_from(self._words, _BEGUN_AT)[0]
        return number

    @begun.setter
    def begun(self, number: int) -> None:
        _WORD.pack_into(self._words, _BEGUN_AT, number)

    @property
    def clock_offset(self) -> float:
        """Seconds that the server's clock is ahead."""
        offset: float = _CLOCK.unpack_from(self._words, _CLOCK_AT)[0]
        return offset

    def jump(self, seconds: float) -> None:
        """Makes the server's clock jump forward."""
        assert seconds > 0
        _CLOCK.pack_into(self._words, _CLOCK_AT, self.clock_offset + seconds)

    def arm(self, point: str, action: str) -> None:
        """Arms a fault that meets the server at its next visit of a point."""
        _WORD.pack_into(self._words, _ACTION_AT, SERVER_ACTIONS.index(action))
        _WORD.pack_into(self._words, _POINT_AT, 1 + SERVER_POINTS.index(point))

    def disarm(self) -> None:
        """Removes the armed fault."""
        _WORD.pack_into(self._words, _POINT_AT, 0)

    @property
    def armed(self) -> bool:
        """True if the server has not come to its point yet."""
        return self._point != 0

    def take(self, point: str) -> str | None:
        """Returns what is to happen to the server at a point, once; for the server."""
        there = self._point
        if there == 0 or SERVER_POINTS[there - 1] != point:
            return None
        self.disarm()
        return SERVER_ACTIONS[_WORD.unpack_from(self._words, _ACTION_AT)[0]]

    @property
    def _point(self) -> int:
        point: int = _WORD.unpack_from(self._words, _POINT_AT)[0]
        return point
