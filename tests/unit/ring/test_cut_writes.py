"""A process killed at each byte of each write: what was acknowledged is there, nothing is wrong."""

from collections import defaultdict
from random import Random

import pytest

from kvstore.ring import NeverCreated, RecordRing
from rings.recording_memory import Crash, RecordingMemory, WriteLog
from rings.ring_model import IDENTITY, number_of, payload

# Thousands of starts, which run no line that other tests do not.
pytestmark = pytest.mark.no_cover
SEGMENT_BYTES = 1024


def keep(view: memoryview) -> memoryview:
    """Returns any record as live."""
    return view


class RingWriter:
    """A ring in recorded memory that says what was acknowledged, and what has to be gone."""

    def __init__(self, memory: list[RecordingMemory], log: WriteLog) -> None:
        self.log = log
        self.memory = memory
        self.sizes: dict[int, int] = {}
        self.dead: set[int] = set()
        self.dropped: list[int] = []
        self.kept = 0

    def still_live(self, view: memoryview) -> memoryview | None:
        """Answers the cleaner."""
        number = number_of(bytes(view))
        if number in self.dead:
            self.dropped.append(number)
            return None
        self.kept += 1
        return view

    def create(self) -> None:
        """Creates the ring."""
        self.ring = RecordRing.create(self.memory, IDENTITY, self.still_live)
        self.log.say("created")

    def open(self) -> None:
        """Opens the ring."""
        self.ring = RecordRing.open(self.memory, self.still_live)

    def append(self, number: int, size: int) -> None:
        """Appends a record."""
        self.sizes[number] = size
        self.log.say("begun", number)
        self.ring.append(payload(number, size))
        self.log.say("appended", number)
        self.say_dropped()

    def clean(self, count: int) -> None:
        """Cleans some records."""
        self.ring.clean(count)
        self.say_dropped()

    def say_dropped(self) -> None:
        """Says of each dropped record that it is gone."""
        while self.dropped:
            self.log.say("gone", self.dropped.pop())

    def die(self, number: int) -> None:
        """Makes a record one that does not count."""
        self.dead.add(number)
        self.log.say("dead", number)

    def check(self, crash: Crash) -> RecordRing | None:
        """Checks the ring that a start finds after a crash, and returns it."""
        said = crash.said
        try:
            ring = RecordRing.open(crash.images, keep)
        except NeverCreated:
            assert not said["created"]
            return None
        found = set()
        for _, view, _ in ring.records():
            content = bytes(view)
            number = number_of(content)
            assert content == payload(number, self.sizes[number])
            found.add(number)
        assert found.issubset(said["begun"])
        assert found.issuperset({*said["appended"]}.difference(said["dead"]))
        assert found.isdisjoint(said["gone"])
        return ring


def written(count: int) -> RingWriter:
    """Returns what wrote records of which few stay live, and cleaned now and then."""
    rng = Random(11)
    log = WriteLog()
    writer = RingWriter([log.memory(rng.randbytes(SEGMENT_BYTES)) for _ in range(2)], log)
    writer.create()
    for number in range(count):
        writer.append(number, rng.randrange(40))
        for age in (6, 60):
            # One in nine lives longer.
            if number >= age and ((number - age) % 9 == 0) == (age == 60):
                writer.die(number - age)
        if number % 11 == 0:
            writer.clean(2)
        if number % 37 == 36:
            # More copies than fit before the tail moves.
            writer.clean(100)
    return writer


def test_a_ring_survives_each_cut() -> None:
    """Through creation, appends, copies of the cleaner and several laps."""
    writer = written(100)
    assert writer.ring.head > 3 * writer.ring.capacity_bytes
    assert writer.kept > 10
    count = sum(writer.check(crash) is not None for crash in writer.log.crashes())
    assert count > 5_000


def test_a_ring_survives_a_second_cut() -> None:
    """A start whose predecessor was killed is killed too, while it appends and cleans."""
    writer = written(60)
    late = 0
    for turn, crash in enumerate(writer.log.crashes()):
        ring = writer.check(crash)
        # Every crash between a record's commit and the store of the head, and some others.
        is_late = ring is not None and ring.head != crash.images[0].cast("Q")[16]
        if ring is None or not (is_late or turn % 211 == 0):
            continue
        late += is_late
        if late % 3:
            continue
        log = WriteLog()
        successor = RingWriter([log.memory(bytes(image)) for image in crash.images], log)
        successor.sizes, successor.dead = dict(writer.sizes), set(crash.said["dead"])
        successor.open()
        if late % 2:
            successor.clean(8)
        # Twice, or the first would never be one of two records behind the stored head.
        for number in (1_000, 1_001):
            successor.append(number, 3)
        said: defaultdict[str, list[object]] = defaultdict(list)
        for second in log.crashes():
            for what, values in crash.said.items():
                said[what] = values + second.said[what]
            assert successor.check(Crash(second.images, said)) is not None
    assert late > 50


def test_a_cut_creation_over_a_ring_leaves_no_mixture() -> None:
    """A start finds the former records, a memory that was never created, or an empty ring."""
    log = WriteLog()
    memory = [memoryview(bytearray(SEGMENT_BYTES)) for _ in range(2)]
    ring = RecordRing.create(memory, IDENTITY, keep)
    ring.append(b"of the former ring")
    RecordRing.create([log.memory(bytes(each)) for each in memory], b"another identity", keep)
    outcomes = []
    for crash in log.crashes():
        try:
            found = RecordRing.open(crash.images, keep)
            outcomes.append(len(list(found.records())))
        except NeverCreated:
            outcomes.append(-1)
    assert outcomes == [1] + [-1] * (len(outcomes) - 2) + [0]
