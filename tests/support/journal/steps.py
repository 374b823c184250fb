"""Numbered steps of a writer over the whole journal, and what a start after a kill has to find.

As a program it is that writer: ``steps.py RING ROWS CHECKED TOMBSTONES PIPE NUMBER`` opens the
memory behind four descriptors. It writes the number of each step that returned to the pipe.
"""

import mmap
import os
import struct
import sys
from random import Random
from typing import NamedTuple, Self

from kvstore.journal import CheckedRows, RecordRing, RowTable, TombstoneRing

NUMBER = struct.Struct("=Q")
PAIR = struct.Struct("=QQ")
SEGMENT_BYTES = 64 << 10
SEGMENT_COUNT = 4
ROW_COUNT = 64
TOMBSTONE_COUNT = 64
SIZES = (
    SEGMENT_COUNT * SEGMENT_BYTES,
    128 + ROW_COUNT * 24,
    128 + 2 * 2 * (24 + 64),
    192 + TOMBSTONE_COUNT * 24,
)
# A record is live for some steps, and every so-manieth one for long.
SHORT_LIFE, LONG_LIFE, LONG_LIVED = 40, 2_000, 20
ROW_LIFE = 20


def payload(number: int) -> bytes:
    """Returns the record of a step."""
    rng = Random(number)
    return NUMBER.pack(number) + rng.randbytes(rng.randrange(1200))


def body(number: int) -> bytes:
    """Returns the checked row of a step."""
    rng = Random(number)
    return NUMBER.pack(number) + rng.randbytes(rng.randrange(56))


def is_live(number: int, newest: int) -> bool:
    """Returns whether a step's record is live once another step is the newest."""
    return newest - number < (SHORT_LIFE if number % LONG_LIVED else LONG_LIFE)


class Memories(NamedTuple):
    """The memory of each structure."""

    ring: list[memoryview]
    rows: memoryview
    checked: memoryview
    tombstones: memoryview

    @classmethod
    def map(cls, descriptors: list[int]) -> Self:
        """Maps four descriptors, shared and writable."""
        ring, rows, checked, tombstones = (
            memoryview(mmap.mmap(descriptor, size))
            for descriptor, size in zip(descriptors, SIZES, strict=True)
        )
        segments = [
            ring[start : start + SEGMENT_BYTES] for start in range(0, len(ring), SEGMENT_BYTES)
        ]
        return cls(segments, rows, checked, tombstones)

    def create(self, identity: bytes) -> None:
        """Creates every structure."""
        RecordRing.create(self.ring, identity, bytes)
        RowTable.create(self.rows, identity, "steps", PAIR)
        row = CheckedRows.create(self.checked, identity, "newest", 64).add(body(0))
        assert row == 0
        TombstoneRing.create(self.tombstones, identity, PAIR)


class Journal:
    """The structures as one start opens them."""

    def __init__(self, memories: Memories) -> None:
        self.ring = RecordRing.open(memories.ring, self.still_live)
        self.rows = RowTable.open(memories.rows, "steps", PAIR)
        self.checked = CheckedRows.open(memories.checked, "newest", 64)
        self.tombstones = TombstoneRing.open(memories.tombstones, PAIR)
        self.row_of = {first: row for row, (first, _) in self.rows.rows()}
        self.newest = max(self.numbers(), default=0)
        self.last_tombstone = max((first for first, _ in self.tombstones.entries()), default=0)

    def still_live(self, view: memoryview) -> memoryview | None:
        """Answers the ring's cleaner."""
        (number,) = NUMBER.unpack(view[: NUMBER.size])
        return view if is_live(number, self.newest) else None

    def numbers(self) -> list[int]:
        """Returns the numbers of the ring's records, each of which is right."""
        records = [bytes(view) for _, view in self.ring.records()]
        numbers = [int(NUMBER.unpack(each[: NUMBER.size])[0]) for each in records]
        assert records == [payload(number) for number in numbers]
        return numbers

    def step(self, number: int) -> None:
        """Writes one step into everything where an earlier process did not."""
        if self.newest < number:
            self.ring.append(payload(number))
            self.newest = number
        if number not in self.row_of:
            self.row_of[number] = self.rows.add(number, number * 7)
        for old in [each for each in self.row_of if each <= number - ROW_LIFE]:
            self.rows.remove(self.row_of.pop(old))
        self.checked.replace(0, body(number))
        if self.last_tombstone < number:
            self.tombstones.append(number, number * 7)
            self.last_tombstone = number
        if number % 3 == 0:
            self.ring.clean(2)

    def check(self, acknowledged: int) -> None:
        """Checks what is there after the last acknowledged step: the next one at most in part."""
        begun = acknowledged + 1
        assert self.newest in (acknowledged, begun)
        live = {number for number in range(1, begun) if is_live(number, self.newest)}
        assert live <= set(self.numbers())
        rows = dict(fields for _, fields in self.rows.rows())
        assert rows == {number: number * 7 for number in rows}
        oldest = max(1, begun - ROW_LIFE + 1)
        assert set(range(oldest, begun)) <= rows.keys() <= set(range(oldest - 1, begun + 1))
        assert self.checked.read(0) in (body(acknowledged), body(begun))
        entries = list(self.tombstones.entries())
        assert self.last_tombstone in (acknowledged, begun)
        end = self.last_tombstone + 1
        assert entries == [(number, number * 7) for number in range(end - len(entries), end)]
        assert len(entries) >= min(acknowledged, TOMBSTONE_COUNT - 1)


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
