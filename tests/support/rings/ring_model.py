"""A ring of records beside a deque of payloads, which every call has to agree with."""

from collections import deque
from collections.abc import Sequence
from random import Random

from kvstore.ring import RecordRing, RingRecord

IDENTITY = b"a ring's identit"
NUMBER_BYTES = 4


def payload(number: int, size: int) -> bytes:
    """Returns the payload of a number: the number, then ``size`` bytes that follow from it."""
    return number.to_bytes(NUMBER_BYTES, "little") + Random(number).randbytes(size)


def number_of(content: bytes) -> int:
    """Returns the number of a payload."""
    return int.from_bytes(content[:NUMBER_BYTES], "little")


def segments(count: int = 2, size: int = 1024) -> list[memoryview]:
    """Returns the memory of a ring."""
    return [memoryview(bytearray(size)) for _ in range(count)]


class RingModel:
    """The records that a ring has to have, in order, and those that the cleaner drops.

    ``dead`` has numbers of records that no longer count, and ``smaller`` the sizes that others
    shrink to. ``dropped`` has the numbers that the cleaner was told to drop, and ``ended`` those of
    records that were ended. ``places`` says where each record was written first.
    """

    def __init__(self, memory: Sequence[memoryview], identity: bytes = IDENTITY) -> None:
        self.records: deque[bytes] = deque()
        self.dead: set[int] = set()
        self.smaller: dict[int, int] = {}
        self.dropped: list[int] = []
        self.ended: set[int] = set()
        self.places: dict[int, int] = {}
        self.ring = RecordRing.create(memory, identity, self.still_live, self.still_ended)

    def still_live(self, view: memoryview) -> bytes | memoryview | None:
        """Answers the ring's cleaner about a record that was not ended."""
        assert number_of(bytes(view)) not in self.ended
        return self._kept(view)

    def still_ended(self, view: memoryview) -> bytes | memoryview | None:
        """Answers the ring's cleaner about a record that was ended."""
        assert number_of(bytes(view)) in self.ended
        return self._kept(view)

    def _kept(self, view: memoryview) -> bytes | memoryview | None:
        """Answers the ring's cleaner, which has to come to the oldest record."""
        found = bytes(view)
        assert found == self.records.popleft()
        number = number_of(found)
        if number in self.dead:
            self.dropped.append(number)
            return None
        if number in self.smaller:
            kept = payload(number, self.smaller[number])
            self.records.append(kept)
            return kept
        self.records.append(found)
        return view

    def append(self, number: int, size: int) -> None:
        """Appends a record to the ring and to the model, in two parts."""
        content = payload(number, size)
        self.places[number] = self.ring.append(content[:NUMBER_BYTES], content[NUMBER_BYTES:])
        self.records.append(content)

    def end(self, number: int) -> None:
        """Ends a record, unless the cleaner copied it since it was written."""
        was_copied = self.places[number] < self.ring.tail
        assert self.ring.end(self.places[number]) != was_copied
        if not was_copied:
            self.ended.add(number)

    def reopen(self, memory: Sequence[memoryview]) -> None:
        """Opens the ring that is in a memory."""
        seen: list[RingRecord] = []
        self.ring = RecordRing.open(memory, self.still_live, seen.append, self.still_ended)
        assert seen == list(self.ring.records())

    def live_bytes(self) -> int:
        """Returns the bytes of live records, with their headers."""
        return sum(
            len(each) + 31 & -16 for each in self.records if number_of(each) not in self.dead
        )

    def check(self) -> None:
        """Checks that the ring has the model's records."""
        found = list(self.ring.records())
        assert [bytes(each) for _, each, _ in found] == list(self.records)
        flags = [number_of(each) in self.ended for each in self.records]
        assert [is_ended for _, _, is_ended in found] == flags
        places = [place for place, _, _ in found]
        assert places == sorted(set(places))
        assert 0 <= self.ring.used_bytes == self.ring.head - self.ring.tail
