"""Numbers of batches that only grow, over restarts and clocks that step back.

Consumers ignore a batch whose number is not larger than the last one. A file has a number that
was never used. A start begins there, or at the clock's time if that is larger, so a consumer sees
a gap. The file is written again long before its number is reached.
"""

import os
from collections.abc import Callable
from pathlib import Path

# A start at the clock's milliseconds leaves room for a million batches a second.
NUMBERS_IN_A_MILLISECOND = 1 << 10
# Numbers that one write of the file allows: twelve days of one batch a second.
RESERVED = 1 << 20
MOST = (1 << 63) - 1


class WrongNumbers(Exception):
    """The file of the last number cannot be read or written."""


class SequenceNumbers:
    """The numbers of one server's batches. ``first`` is the first one. For one thread."""

    def __init__(self, path: Path, wall_clock: Callable[[], float]) -> None:
        """``wall_clock`` returns seconds since 1970. Raises :class:`WrongNumbers`."""
        self._path = path
        by_clock = int(wall_clock() * 1000) * NUMBERS_IN_A_MILLISECOND
        self.first = max(self._read(), by_clock, 1)
        self._end = self.first
        self.reserve(self.first)

    def reserve(self, number: int) -> None:
        """Makes sure that no later server uses ``number``. Raises :class:`WrongNumbers`."""
        if number < self._end:
            return
        end = number + RESERVED
        fresh = self._path.with_suffix(".new")
        try:
            with fresh.open("w", encoding="ascii") as file:
                file.write(f"{end}\n")
                file.flush()
                os.fsync(file.fileno())
            fresh.rename(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise WrongNumbers(f"{self._path}: {error.strerror}") from error
        self._end = end

    def _read(self) -> int:
        try:
            text = self._path.read_text(encoding="ascii")
            number = int(text)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise WrongNumbers(f"{self._path}: {error.strerror}") from error
        except ValueError:
            number = -1
        if not 0 <= number <= MOST - 2 * RESERVED:
            raise WrongNumbers(f"{self._path} has no number of a batch: remove it")
        return number
