"""Reads a ring that another process writes, so that little is left to read once it ends."""

from collections.abc import Sequence

from kvstore.ring.ring_reader import ReadRecord, RingReader, ring_header


class RingFollower:
    """The records of a ring, as far as they were read. Writes nothing.

    A record never changes at its place, except that it may be ended. The writer's cleaner frees
    records, and their bytes become others'. So each record is copied before its sum is compared:
    a record with a right sum is the one of its place, whenever it was read.

    ``records`` are by place, in rising order. ``RecordRing.open`` takes them for granted where
    their places are still the ring's.
    """

    def __init__(self, segments: Sequence[memoryview]) -> None:
        """Begins with the oldest record. Raises as ``RecordRing.open`` does for wrong memory."""
        header = ring_header(segments)
        self.identity = header.identity
        self.records: dict[int, ReadRecord] = {}
        self._reader = RingReader(segments, header)
        self._tail = 0
        self._at = 0

    @property
    def tail(self) -> int:
        """The place of the oldest record, as the memory says. It only grows."""
        return max([self._tail, *(tail for tail, _ in self._reader.tail_copies())])

    def follow(self) -> list[int]:
        """Reads what was written since the last call, and returns the places of those records.

        Forgets the records that the writer freed. Stops at a record that is not whole yet, or
        that was freed meanwhile.
        """
        self._tail = self.tail
        freed = []
        for place in self.records:
            if place >= self._tail:
                break
            freed.append(place)
        for place in freed:
            del self.records[place]
        at, head, found = max(self._at, self._tail), self._reader.head, list[int]()
        while at < head:
            read = self._reader.read(at, copies=True)
            if read is None:
                break
            self.records[at] = read
            found.append(at)
            at = read.end
        self._at = at
        return found
