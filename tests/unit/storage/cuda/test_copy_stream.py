"""Batches in flight: two of one direction, and those of both beside each other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

import pytest

from device.copier_rig import COUNT, LIMIT, SLOT, Rig, turned
from kvstore.storage.arenas import POISON


@dataclass
class Stuck:
    """A direction whose waits do not return until ``release`` is called."""

    begun: Event = field(default_factory=Event)
    gate: Event = field(default_factory=Event)

    def release(self) -> None:
        """Goes on."""
        self.gate.set()


@pytest.fixture
def stuck_outwards(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stuck]:
    """Copies from the device that end once they are released, by the test or after it."""
    stuck, outwards = Stuck(), set[int]()
    read, record, wait = rig.cuda.begin_read, rig.cuda.record_event, rig.cuda.wait_for_event
    reading = set[int]()

    def begin_read(address: int, into: memoryview, stream: int) -> None:
        reading.add(stream)
        read(address, into, stream)

    def record_event(stream: int) -> int:
        event = record(stream)
        if stream in reading:
            outwards.add(event)
            stuck.begun.set()
        return event

    def wait_for_event(event: int) -> None:
        if event in outwards:
            assert stuck.gate.wait(LIMIT)
        wait(event)

    monkeypatch.setattr(rig.cuda, "begin_read", begin_read)
    monkeypatch.setattr(rig.cuda, "record_event", record_event)
    monkeypatch.setattr(rig.cuda, "wait_for_event", wait_for_event)
    yield stuck
    stuck.release()


def test_a_promotion_does_not_wait_for_a_demotion(rig: Rig, stuck_outwards: Stuck) -> None:
    """Pages come in, are read and are poisoned while those on their way out are stuck."""
    contents = rig.fill(rig.first)
    third = rig.upper.allocate(1, SLOT).shape.extent_id << 32
    going = rig.tiers.begin_all(rig.pairs(rig.first, rig.second))
    assert stuck_outwards.begun.wait(LIMIT)
    pages = [(third + n, memoryview(bytes([40 + n]) * SLOT)) for n in range(COUNT)]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(rig.tiers.write_all, pages).result(LIMIT) == [None] * COUNT
        assert pool.submit(rig.read, third).result(LIMIT) == [bytes(each) for _, each in pages]
        pool.submit(rig.tiers.poison, [third]).result(LIMIT)
    assert rig.read(third)[0] == bytes([POISON]) * SLOT
    assert rig.read(rig.second) == [bytes(SLOT)] * COUNT, "nothing has come down yet"
    stuck_outwards.release()
    assert going() == [None] * COUNT
    assert rig.read(rig.second) == turned(contents)


def test_a_batch_is_begun_while_the_one_before_is_copied(rig: Rig, stuck_outwards: Stuck) -> None:
    """Two batches are in flight; each is done after its own wait, and not before."""
    contents = rig.fill(rig.first)
    later = rig.lower.allocate(1, SLOT).shape.extent_id << 32
    first = rig.tiers.begin_all([(rig.first, rig.second)])
    assert stuck_outwards.begun.wait(LIMIT)
    stuck_outwards.begun.clear()
    second = rig.tiers.begin_all([(rig.first + 1, later)])
    assert stuck_outwards.begun.wait(LIMIT), "the second waits for the first"
    assert (rig.read(rig.second)[0], rig.read(later)[0]) == (bytes(SLOT), bytes(SLOT))
    stuck_outwards.release()
    assert (first(), rig.read(rig.second)[0]) == ([None], contents[0])
    assert (second(), rig.read(later)[0]) == ([None], contents[1])


def test_the_stand_in_ends_no_batch_but_the_one_waited_for(rig: Rig) -> None:
    """A batch that counts as done because an earlier one is would be found."""
    contents = [memoryview(bytearray(8)), memoryview(bytearray(8))]
    stream, address = rig.cuda.make_stream(), next(iter(rig.card.memory))
    rig.cuda.fill(address, 8, 7, stream)
    events = []
    for each in contents:
        rig.cuda.begin_read(address, each, stream)
        events.append(rig.cuda.record_event(stream))
    rig.cuda.wait_for_event(events[0])
    assert [any(each) for each in contents] == [True, False]
    rig.cuda.wait_for_event(events[1])
    assert all(any(each) for each in contents)
