"""Random ids, which do not reveal how many exist."""

import secrets
from collections.abc import Iterable, Iterator

# The range of a uint32. On the wire, zero stands for no id.
LARGEST_ID = (1 << 32) - 1


def random_ids(taken: Iterable[int] = ()) -> Iterator[int]:
    """Yields random ids from 1 to 2**32 - 1, none twice and none of ``taken``.

    They name arenas and extents. Sequential ids would show a tenant what others do.
    """
    used = set(taken)
    while True:
        number = secrets.randbelow(LARGEST_ID) + 1
        if number not in used:
            used.add(number)
            yield number
