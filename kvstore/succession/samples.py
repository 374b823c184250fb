"""Samples of inherited memory, read before any page of an extent can be matched."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from random import Random

from xxhash import xxh3_64_intdigest

from kvstore.core.values.slots import CACHED, NO_CHECKSUM, ExtentSlots

# Pages of each extent that are compared with their checksums.
SAMPLED_PAGES = 2
# Pages that are read before the first answer, of all extents.
MOST_BEFORE_ANSWERS = 10

# Returns a slot's bytes by its index, or None if its memory is closed.
Read = Callable[[int], memoryview | None]


class Samples:
    """The inherited extents, and whether some pages of each have the bytes that were written.

    The kernel's name of an extent's memory has the extent's id already, so swapped descriptors are
    found without a sample. A sample finds bytes that somebody wrote over. Pages without checksums
    are not sampled: their extents are known by that name alone.

    A page can be matched or copied only after ``prove`` of its extent. ``wrong`` are extents that
    failed. Thread-safe, without the mutex of the cache.
    """

    def __init__(
        self, extents: Iterable[ExtentSlots] = (), reader: Callable[[int], Read] | None = None
    ) -> None:
        """``reader`` returns what reads an extent's slots. Without extents none is needed."""
        self.wrong: set[int] = set()
        self._waiting = {each.extent_id: each for each in extents}
        self._reader = reader

    def prove_some(self) -> bool:
        """Samples a few extents before the first answer; returns whether all of them are right."""
        extents = list(islice(self._waiting, MOST_BEFORE_ANSWERS // SAMPLED_PAGES))
        return not self.prove(extents)

    def prove_all(self) -> list[int]:
        """Samples all other extents, one after the other; returns those that are wrong."""
        return [each for extent_id in list(self._waiting) for each in self.prove((extent_id,))]

    def prove(self, extent_ids: Iterable[int]) -> list[int]:
        """Returns which of some extents are wrong. Reads samples of those that nobody read yet."""
        if not self._waiting and not self.wrong:
            return []
        asked = list(extent_ids)
        for each in asked:
            extent = self._waiting.get(each)
            if extent is not None:
                if not self._is_right(extent):
                    self.wrong.add(each)
                self._waiting.pop(each, None)
        return [each for each in asked if each in self.wrong]

    def _is_right(self, extent: ExtentSlots) -> bool:
        assert self._reader is not None  # there is an extent
        read = self._reader(extent.extent_id)
        return all(self._has_its_bytes(extent, read, index) for index in _sampled(extent))

    def _has_its_bytes(self, extent: ExtentSlots, read: Read, index: int) -> bool:
        """Returns False if a page has other bytes. It may be evicted meanwhile, and written."""
        generation, checksum = extent.generations[index], extent.checksums[index]
        is_there = extent.states[index] == CACHED
        content = read(index) if is_there else None
        if content is None or xxh3_64_intdigest(content) == checksum:
            return True
        return extent.generations[index] != generation


def _sampled(extent: ExtentSlots) -> Iterator[int]:
    """Yields up to SAMPLED_PAGES cached slots with a checksum, at random places."""
    first = Random().randrange(extent.slot_count)  # noqa: S311  # which pages, not a secret
    found, wanted = 0, bytes((CACHED,))
    states = extent.states[first:] + extent.states[:first]
    at = states.find(wanted)
    while at >= 0 and found < SAMPLED_PAGES:
        index = (first + at) % extent.slot_count
        if extent.checksums[index] != NO_CHECKSUM:
            found += 1
            yield index
        at = states.find(wanted, at + 1)
