"""Random ids, which do not reveal how many exist."""

import secrets
from collections.abc import Iterable, Iterator
from threading import Lock

# The range of a uint32. On the wire, zero stands for no id.
LARGEST_ID = (1 << 32) - 1


def random_ids(taken: Iterable[int] = ()) -> Iterator[int]:
    """Returns random ids from 1 to 2**32 - 1 without end, none twice and none of ``taken``.

    They name arenas and extents. Sequential ids would show a tenant what others do. Any thread may
    take the next one: each memory tier grows on a thread of its own.
    """
    return _RandomIds(taken)


class _RandomIds(Iterator[int]):
    """A generator would raise if two threads took an id at the same time."""

    def __init__(self, taken: Iterable[int]) -> None:
        self._used = set(taken)
        self._mutex = Lock()

    def __next__(self) -> int:
        with self._mutex:
            while (number := secrets.randbelow(LARGEST_ID) + 1) in self._used:
                pass
            self._used.add(number)
            return number
