"""Ids that say nothing of how many there are."""

import secrets
from collections.abc import Iterator

# What a uint32 holds. Zero stands for none on the wire.
LARGEST_ID = (1 << 32) - 1


def random_ids() -> Iterator[int]:
    """Yields random ids from 1 to 2**32 - 1, none twice.

    A tenant that counted ids would learn what others do: arenas and extents are
    named by these.
    """
    used: set[int] = set()
    while True:
        number = secrets.randbelow(LARGEST_ID) + 1
        if number not in used:
            used.add(number)
            yield number
