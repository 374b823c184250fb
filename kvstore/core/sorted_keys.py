"""Keys in the order of bytes, in short runs, so that a change moves a few of them and not all."""

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import itemgetter

# A run is cut in two when it has twice as many keys. Of a million keys one list moves
# 4 MiB at each change; 1,000 runs move 8 KiB in one and 4 KiB among themselves.
RUN = 512

_last = itemgetter(-1)


class SortedKeys:
    """Distinct keys, one when it is made; once it is empty it is good for nothing more.

    A change costs two bisections and a move of a run, whatever the number of keys.
    """

    __slots__ = ("_runs",)

    def __init__(self, first: bytes) -> None:
        self._runs = [[first]]

    def add(self, key: bytes) -> None:
        """Put in a key that is not there."""
        runs = self._runs
        # The last takes in what is greater than all of them.
        place = bisect_left(runs, key, hi=len(runs) - 1, key=_last)
        run = runs[place]
        insort(run, key)
        if len(run) >= 2 * RUN:
            runs.insert(place + 1, run[RUN:])
            del run[RUN:]

    def drop(self, key: bytes) -> None:
        """Take out a key, which MUST be there."""
        runs = self._runs
        place = bisect_left(runs, key, key=_last)
        run = runs[place]
        del run[bisect_left(run, key)]
        if not run:
            del runs[place]

    def around(self, key: bytes) -> tuple[bytes | None, bytes | None]:
        """Return the last key that is less than ``key``, and the first that is not; or None."""
        place, runs = self._place(key), self._runs
        if place == len(runs):
            return runs[-1][-1], None
        run = runs[place]
        at = bisect_left(run, key)
        if at:
            return run[at - 1], run[at]
        return (runs[place - 1][-1] if place else None), run[0]

    def since(self, key: bytes) -> Iterator[bytes]:
        """Yield the keys that are not less than ``key``, in order."""
        place = self._place(key)
        if place < len(self._runs):
            run = self._runs[place]
            yield from run[bisect_left(run, key) :]
            for later in self._runs[place + 1 :]:
                yield from later

    def _place(self, key: bytes) -> int:
        """Return the number of the first run whose last key is not less than ``key``."""
        runs = self._runs
        if len(runs) == 1:
            return 0 if runs[0][-1] >= key else 1
        return bisect_left(runs, key, key=_last)
