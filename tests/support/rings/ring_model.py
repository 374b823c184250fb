"""A ring of records beside a deque of payloads, which every call has to agree with."""

from collections import deque
from collections.abc import Sequence
from random import Random

from kvstore.ring import RecordRing

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
    shrink to. ``dropped`` has the numbers that the cleaner was told to drop.
    """

    def __init__(self, memory: Sequence[memoryview], identity: bytes = IDENTITY) -> None:
        self.records: deque[bytes] = deque()
        self.dead: set[int] = set()
        self.smaller: dict[int, int] = {}
        self.dropped: list[int] = []
        self.ring = RecordRing.create(memory, identity, self.still_live)

    def still_live(self, view: memoryview) -> bytes | memoryview | None:
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
        self.ring.append(content[:NUMBER_BYTES], content[NUMBER_BYTES:])
        self.records.append(content)

    def reopen(self, memory: Sequence[memoryview]) -> None:
        """Opens the ring that is in a memory."""
        seen: list[memoryview] = []
        self.ring = RecordRing.open(memory, self.still_live, seen.append)
        assert seen == [each for _, each in self.ring.records()]

    def live_bytes(self) -> int:
        """Returns the bytes of live records, with their headers."""
        return sum(
            len(each) + 31 & -16 for each in self.records if number_of(each) not in self.dead
        )

    def check(self) -> None:
        """Checks that the ring has the model's records."""
        found = list(self.ring.records())
        assert [bytes(each) for _, each in found] == list(self.records)
        places = [place for place, _ in found]
        assert places == sorted(set(places))
        assert 0 <= self.ring.used_bytes == self.ring.head - self.ring.tail
