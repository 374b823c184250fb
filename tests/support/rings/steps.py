"""Numbered steps of a writer over a ring and a table of holds, and what a start has to find.

As a program it is that writer: ``steps.py RING HOLDS PIPE NUMBER`` opens the memory behind two
descriptors. It writes the number of each step that returned to the pipe.
"""

import mmap
import os
import struct
import sys
from random import Random
from typing import NamedTuple, Self

from kvstore.core.journal.rows import PIN_SCOPE, HoldKey, HoldRow
from kvstore.ring import RecordRing
from kvstore.succession.journal.hold_table import HoldTable

NUMBER = struct.Struct("=Q")
SEGMENT_BYTES = 64 << 10
SEGMENT_COUNT = 4
ROW_COUNT = 64
SIZES = (SEGMENT_COUNT * SEGMENT_BYTES, 128 + ROW_COUNT * 64)
# A record is live for some steps, and every so-manieth one for long.
SHORT_LIFE, LONG_LIFE, LONG_LIVED = 40, 2_000, 20
HOLD_LIFE = 20


def payload(number: int) -> bytes:
    """Returns the record of a step."""
    rng = Random(number)
    return NUMBER.pack(number) + rng.randbytes(rng.randrange(1200))


def is_live(number: int, newest: int) -> bool:
    """Returns whether a step's record is live once another step is the newest."""
    return newest - number < (SHORT_LIFE if number % LONG_LIVED else LONG_LIFE)


def hold(number: int) -> HoldRow:
    """Returns the hold of a step."""
    return HoldRow(number % 1000, PIN_SCOPE, number, 1, number * 7)


class Memories(NamedTuple):
    """The memory of each structure."""

    ring: list[memoryview]
    holds: memoryview

    @classmethod
    def map(cls, descriptors: list[int]) -> Self:
        """Maps two descriptors, shared and writable."""
        ring, holds = (
            memoryview(mmap.mmap(descriptor, size))
            for descriptor, size in zip(descriptors, SIZES, strict=True)
        )
        segments = [
            ring[start : start + SEGMENT_BYTES] for start in range(0, len(ring), SEGMENT_BYTES)
        ]
        return cls(segments, holds)

    def create(self, identity: bytes) -> None:
        """Creates both structures."""
        RecordRing.create(self.ring, identity, bytes)
        HoldTable.create(self.holds, identity)


class Journal:
    """The structures as one start opens them."""

    def __init__(self, memories: Memories) -> None:
        self.ring = RecordRing.open(memories.ring, self.still_live)
        self.holds = HoldTable.open(memories.holds)
        self.held = {each.hold_id: each.key for each in self.holds.rows()}
        self.newest = max(self.numbers(), default=0)

    def still_live(self, view: memoryview) -> memoryview | None:
        """Answers the ring's cleaner."""
        (number,) = NUMBER.unpack(view[: NUMBER.size])
        return view if is_live(number, self.newest) else None

    def numbers(self) -> list[int]:
        """Returns the numbers of the ring's records, each of which is right."""
        records = [bytes(view) for _, view, _ in self.ring.records()]
        numbers = [int(NUMBER.unpack(each[: NUMBER.size])[0]) for each in records]
        assert records == [payload(number) for number in numbers]
        return numbers

    def step(self, number: int) -> None:
        """Writes one step into everything where an earlier process did not."""
        if self.newest < number:
            self.ring.append(payload(number))
            self.newest = number
        if number not in self.held:
            self.held[number] = hold(number).key
            assert self.holds.put(hold(number))
        for old in [each for each in self.held if each <= number - HOLD_LIFE]:
            self.holds.bury(HoldKey(*self.held.pop(old)))
        if number % 3 == 0:
            self.ring.clean(2)

    def check(self, acknowledged: int) -> None:
        """Checks what is there after the last acknowledged step: the next one at most in part."""
        begun = acknowledged + 1
        assert self.newest in (acknowledged, begun)
        live = {number for number in range(1, begun) if is_live(number, self.newest)}
        assert live <= set(self.numbers())
        holds = {each.hold_id: each for each in self.holds.rows()}
        assert holds == {number: hold(number) for number in holds}
        oldest = max(1, begun - HOLD_LIFE + 1)
        assert set(range(oldest, begun)) <= holds.keys() <= set(range(oldest - 1, begun + 1))
        # A start knows no longer which of them came first, so it may use any of their rows.
        buried = {key.hold_id for key in self.holds.tombstones()}
        assert buried <= set(range(1, oldest + 1))
        assert len(buried) >= min(oldest - 2, ROW_COUNT - HOLD_LIFE - 2)


def main(arguments: list[str]) -> None:
    """Writes steps from a number on, until the process is killed."""
    *descriptors, acknowledgements, number = map(int, arguments)
    journal = Journal(Memories.map(descriptors))
    while True:
        journal.step(number)
        os.write(acknowledgements, NUMBER.pack(number))
        number += 1


if __name__ == "__main__":
    main(sys.argv[1:])
