"""A follower of a ring: what it reads beside the writer, and what a start takes from it."""

import pytest

from kvstore.ring import NeverCreated, RecordRing, RingFollower, RingRecord
from rings.ring_model import IDENTITY, segments


def drop(_: memoryview) -> None:
    """Returns any record as dead."""


def keep(view: memoryview) -> memoryview:
    """Returns any record as live."""
    return view


def payloads(follower: RingFollower) -> list[bytes]:
    """Returns the payloads that a follower has."""
    read = (each.payload for each in follower.records.values())
    return [bytes(each) for each in read if each is not None]


def opened(memory: list[memoryview], follower: RingFollower) -> list[RingRecord]:
    """Returns the records that a start finds which takes those of a follower for granted."""
    seen: list[RingRecord] = []
    RecordRing.open(memory, keep, seen.append, keep, follower.records)
    return seen


def test_it_reads_what_is_new() -> None:
    """Each call adds the records since, and returns their places."""
    memory = segments()
    ring, follower = RecordRing.create(memory, IDENTITY, keep), RingFollower(memory)
    assert follower.follow() == []
    places = [ring.append(b"one"), ring.append(b"two")]
    assert follower.follow() == places
    assert follower.follow() == []
    third = ring.append(b"three")
    assert follower.follow() == [third]
    assert payloads(follower) == [b"one", b"two", b"three"]


def test_its_payloads_are_copies() -> None:
    """A writer that goes on for laps changes nothing of them."""
    memory = segments(1)
    ring, follower = RecordRing.create(memory, IDENTITY, drop), RingFollower(memory)
    ring.append(b"one")
    follower.follow()
    [read] = follower.records.values()
    for _ in range(100):
        ring.append(bytes(40))
    assert read.payload == b"one"


def test_it_forgets_what_was_freed() -> None:
    """The ring's records are its own, also after a lap that it missed."""
    memory = segments(1)
    ring, follower = RecordRing.create(memory, IDENTITY, drop), RingFollower(memory)
    ring.append(b"one")
    follower.follow()
    for number in range(200):
        ring.append(number.to_bytes(40, "little"))
    follower.follow()
    assert payloads(follower) == [bytes(each) for _, each, _ in ring.records()]


def test_it_stops_at_a_record_that_is_not_whole() -> None:
    """Such a record is read by a later call, once it is there."""
    memory = segments(1)
    ring, follower = RecordRing.create(memory, IDENTITY, keep), RingFollower(memory)
    ring.append(b"one")
    place = ring.append(b"two")
    at = 256 + place + 16
    memory[0][at] ^= 1
    follower.follow()
    assert payloads(follower) == [b"one"]
    memory[0][at] ^= 1
    assert follower.follow() == [place]


def test_it_refuses_memory_without_a_ring() -> None:
    """As a start does."""
    with pytest.raises(NeverCreated):
        RingFollower(segments())


def test_a_start_reads_the_ends_of_known_records_anew() -> None:
    """A record may be ended after it was read, or before."""
    memory = segments()
    ring, follower = RecordRing.create(memory, IDENTITY, keep), RingFollower(memory)
    places = [ring.append(each) for each in (b"one", b"two", b"three")]
    ring.end(places[0])
    follower.follow()
    ring.end(places[2])
    assert [each[2] for each in opened(memory, follower)] == [True, False, True]


def test_a_start_reads_a_record_whose_words_changed() -> None:
    """The words of a known record decide if it is still there."""
    memory = segments()
    ring, follower = RecordRing.create(memory, IDENTITY, keep), RingFollower(memory)
    places = [ring.append(b"one"), ring.append(b"two"), ring.append(b"three")]
    follower.follow()
    one, two = (follower.records[each] for each in places[:2])
    follower.records[places[0]] = one._replace(digest=one.digest ^ 1)
    follower.records[places[1]] = two._replace(word=two.word ^ 1)
    assert [bytes(each[1]) for each in opened(memory, follower)] == [b"one", b"two", b"three"]
