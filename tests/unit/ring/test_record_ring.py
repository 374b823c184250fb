"""A ring of records: what it refuses, how it wraps and cleans, and the damage that it finds."""

from random import Random

import pytest

from kvstore.ring import (
    JournalDamaged,
    JournalUnusable,
    NeverCreated,
    RecordRing,
    RecordTooLarge,
    RingFull,
    RingRecord,
    WrongMemory,
)
from rings.ring_model import IDENTITY, RingModel, number_of, payload, segments


def keep(view: memoryview) -> memoryview:
    """Returns any record as live."""
    return view


def drop(_: memoryview) -> None:
    """Returns any record as dead."""


def fill(ring: RecordRing, content: bytes) -> None:
    """Appends more than any ring here has space for."""
    for _ in range(1_000):
        ring.append(content)
        assert ring.used_bytes <= ring.capacity_bytes


def contents(memory: list[memoryview]) -> list[bytes]:
    """Returns the payloads that another start finds."""
    seen: list[RingRecord] = []
    assert seen == list(RecordRing.open(memory, keep, seen.append).records())
    return [bytes(each) for _, each, _ in seen]


def test_records_are_found_in_their_order() -> None:
    """Another start finds each payload at the place that its append returned."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, keep)
    places = [
        ring.append(b"one"),
        ring.append(b"", memoryview(b"two"), bytearray(b"!")),
        ring.append(),
    ]
    opened = RecordRing.open(memory, keep)
    found = [(place, bytes(each)) for place, each, _ in opened.records()]
    assert found == list(zip(places, [b"one", b"two!", b""], strict=True))
    assert (opened.head, opened.tail, opened.identity) == (ring.head, 0, IDENTITY)


def test_a_payload_is_read_only() -> None:
    """No reader changes the ring's memory by a payload."""
    ring = RecordRing.create(segments(), IDENTITY, keep)
    ring.append(b"one")
    ((_, view, _),) = ring.records()
    assert view.readonly


def test_a_ring_goes_on_for_many_laps() -> None:
    """Dead records make way for new ones for ever, across segments' ends and laps."""
    memory = segments(3)
    model = RingModel(memory)
    rng = Random(7)
    for number in range(2_000):
        model.append(number, rng.randrange(60))
        model.dead.add(number - 5)
        if number % 50 == 0:
            model.reopen(memory)
            model.check()
    assert model.ring.head > 20 * model.ring.capacity_bytes


def test_live_records_are_kept_for_ever() -> None:
    """A record that stays live is copied to the head again and again."""
    memory = segments()
    model = RingModel(memory)
    for number in range(500):
        model.append(number, number % 40)
        if number > 3:
            model.dead.add(number)
    model.reopen(memory)
    model.check()
    assert [number_of(each) for each in model.records if number_of(each) <= 3]


def test_an_append_cleans_four_records_above_seven_eighths() -> None:
    """Below that fill it cleans none, above it four."""
    model = RingModel(segments())
    seen = []
    for number in range(100):
        before = len(model.dropped)
        full = model.ring.used_bytes + 48 > model.ring.capacity_bytes * 7 // 8
        model.append(number, 20)
        model.dead.add(number)
        seen.append((full, len(model.dropped) - before))
    assert set(seen) == {(False, 0), (True, 4)}


def test_the_cleaner_stops_where_it_began() -> None:
    """A call cleans no record that it copied itself, and no more than there are."""
    model = RingModel(segments())
    for number in range(3):
        model.append(number, 10)
    assert model.ring.clean(100) == 0
    assert [number_of(each) for each in model.records] == [0, 1, 2]
    model.dead.update(range(3))
    assert model.ring.clean(2) == 2 * 32
    assert model.ring.clean(100) == 32
    assert model.ring.clean(100) == 0
    model.check()


def test_a_live_record_may_shrink() -> None:
    """The cleaner writes what it is given in place of a record."""
    memory = segments()
    model = RingModel(memory)
    model.append(0, 70)
    model.smaller[0] = 3
    assert model.ring.clean(1) == 96 - 32
    assert contents(memory) == [payload(0, 3)]


def test_a_record_is_ended_where_it_was_written() -> None:
    """One store ends it. The cleaner asks for it apart, and what is kept of it stays ended."""
    memory = segments()
    model = RingModel(memory)
    for number in range(3):
        model.append(number, 10)
    model.end(1)
    model.reopen(memory)
    model.check()
    model.smaller[1] = 3
    assert model.ring.clean(3) == 0
    model.reopen(memory)
    model.check()
    # The others are somewhere else by now.
    model.end(0)
    assert model.ended == {1}
    model.dead.update(range(3))
    assert model.ring.clean(3) == 3 * 32
    assert model.dropped == [0, 1, 2]


def test_a_record_is_ended_in_whichever_segment_it_is() -> None:
    """Before the head's segment as in it, in the first lap and in later ones."""
    memory = segments()
    model = RingModel(memory)
    for number in range(200):
        model.append(number, 20)
        if number >= 12:
            model.end(number - 12)
            model.dead.add(number - 12)
        model.check()
    assert model.ended == set(range(188))
    model.reopen(memory)
    model.check()


def test_an_ended_record_goes_if_nobody_asks_for_it() -> None:
    """Without a callback for them, the cleaner drops ended records."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, keep)
    for place in (ring.append(b"one"), ring.append(b"two")):
        ring.end(place)
    ring.append(b"three")
    ring.clean(3)
    assert contents(memory) == [b"three"]


def test_a_ring_of_live_records_is_given_up() -> None:
    """When all is live, an append raises RingFull, and the memory is not opened again."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, keep)
    with pytest.raises(RingFull, match="live"):
        fill(ring, bytes(40))
    assert ring.used_bytes <= 2 * (1024 - 256)
    for call in (lambda: ring.append(b"more"), lambda: ring.clean(1)):
        with pytest.raises(JournalUnusable, match="given up: all of"):
            call()
    with pytest.raises(NeverCreated):
        RecordRing.open(memory, keep)


def test_records_that_grow_fill_a_ring() -> None:
    """A cleaner whose copies take more than there is raises RingFull, and overwrites nothing."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, lambda _: bytes(80))
    with pytest.raises(RingFull):
        fill(ring, b"a")
    assert ring.used_bytes <= 2 * (1024 - 256)


def test_an_owner_gives_a_ring_up() -> None:
    """Later calls raise the owner's reason, and the next start is clean."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, keep)
    ring.append(b"one")
    ring.give_up("the owner said so")
    ring.give_up("again")
    with pytest.raises(JournalUnusable, match="given up: the owner said so"):
        ring.append(b"two")
    with pytest.raises(NeverCreated):
        RecordRing.open(memory, keep)


def test_a_record_has_a_largest_size() -> None:
    """A larger one is refused and changes nothing, the largest fits anywhere."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, drop)
    with pytest.raises(RecordTooLarge, match="112 bytes is over the ring's limit of 96"):
        ring.append(bytes(ring.largest_bytes + 1))
    for _ in range(50):
        ring.append(bytes(ring.largest_bytes))
    assert set(contents(memory)) == {bytes(80)}


def test_the_smallest_ring_works() -> None:
    """One segment of a kibibyte takes records for ever."""
    memory = segments(1)
    model = RingModel(memory)
    for number in range(300):
        model.append(number, number % 70)
        model.dead.add(number - 1)
        model.check()
    model.reopen(memory)
    model.check()


@pytest.mark.parametrize(
    ("sizes", "why"),
    [((), "one size"), ((1024, 2048), "one size"), ((1008,), "1 KiB"), ((1032,), "steps of 16")],
)
def test_unfit_segments_are_refused(sizes: tuple[int, ...], why: str) -> None:
    """Segments have one size, a multiple of 16 from a kibibyte on."""
    memory = [memoryview(bytearray(size)) for size in sizes]
    with pytest.raises(ValueError, match=why):
        RecordRing.create(memory, IDENTITY, keep)


def test_segments_have_their_places() -> None:
    """Swapped, missing and foreign segments are refused."""
    memory, other = segments(3), segments(3)
    RecordRing.create(memory, IDENTITY, keep)
    RecordRing.create(other, b"another identity", keep)
    for wrong in (
        [memory[1], memory[0], memory[2]],
        [memory[0], memory[2], memory[1]],
        memory[:2],
        [*memory[:2], other[2]],
    ):
        with pytest.raises(WrongMemory):
            RecordRing.open(wrong, keep)


def test_bytes_of_an_earlier_ring_are_no_records() -> None:
    """A ring that is created over the bytes of another one is empty."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, keep)
    for _ in range(5):
        ring.append(b"of the earlier ring")
    RecordRing.create(memory, b"another identity", keep)
    assert contents(memory) == []


def test_a_record_of_an_earlier_lap_is_no_new_one() -> None:
    """A commit that a stray write left behind the head does not bring an old record back."""
    memory = segments(1)
    model = RingModel(memory)
    for number in range(20):
        # Sixteen of these fill the segment.
        model.append(number, 28)
        model.dead.add(number)
    before = contents(memory)
    words = memory[0].cast("Q")
    word = (256 + model.ring.head % 768) >> 3
    assert words[word] & 0xFFFFFFFF == 32
    words[word] = model.ring.head >> 4 << 32 | 32
    assert contents(memory) == before


def written() -> tuple[list[memoryview], RecordRing]:
    """Returns a ring with records in all segments, in its third lap."""
    memory = segments()
    model = RingModel(memory)
    for number in range(100):
        model.append(number, 5 + number % 50)
        model.dead.add(number - 6)
    return memory, model.ring


def test_a_stray_write_before_the_head_is_found() -> None:
    """A changed byte of a record discards all. Any other changed byte does too, or is harmless.

    Harmless is also a changed tail: its other copy is older, so more records are found before.
    """
    memory, ring = written()
    before = contents(memory)
    records = {
        (number, 256 + offset + byte)
        for place, view, _ in ring.records()
        for number, offset in [divmod(place % (2 * 768), 768)]
        for byte in range(16 + len(view))
    }
    assert len({number for number, _ in records}) == 2
    for number, segment in enumerate(memory):
        for at in range(len(segment)):
            segment[at] ^= 0x40
            try:
                assert contents(memory)[-len(before) :] == before
                assert (number, at) not in records
            except JournalUnusable:
                pass
            segment[at] ^= 0x40
    assert contents(memory) == before


def test_a_head_that_lost_records_is_found() -> None:
    """A head that a stray write moved back by two records or more discards all."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, keep)
    places = [ring.append(b"a"), ring.append(b"b"), ring.append(b"c")]
    words = memory[0].cast("Q")
    words[16] = places[2]
    assert contents(memory) == [b"a", b"b", b"c"]
    for head in (places[1], places[0], places[2] + 16, ring.head + 8, 1 << 50):
        words[16] = head
        with pytest.raises(JournalDamaged):
            contents(memory)


def test_padding_may_be_behind_the_head() -> None:
    """An append that did not return may have left the segment's end alone."""
    memory = segments()
    model = RingModel(memory)
    while model.ring.head <= 768:
        padding = model.ring.head
        model.append(len(model.records), 60)
    words = memory[0].cast("Q")
    words[16] = 768
    assert contents(memory) == list(model.records)
    # The padding is whole, and the record behind it is not.
    memory[1][256] ^= 1
    words[16] = padding
    assert contents(memory) == list(model.records)[:-1]


def test_a_tail_without_a_whole_copy_is_found() -> None:
    """One copy is enough, none discards all."""
    memory, _ = written()
    before = contents(memory)
    words = memory[0].cast("Q")
    newest = max((24, 26), key=lambda word: words[word])
    words[50 - newest] ^= 1
    assert contents(memory) == before
    words[newest + 1] ^= 1
    with pytest.raises(JournalDamaged, match="tail"):
        contents(memory)


def test_the_cleaner_finds_a_stray_write() -> None:
    """A damaged record is never copied: the ring is given up, by a cleaner and by an append."""
    for call in (
        lambda ring: ring.clean(1),
        lambda ring: fill(ring, bytes(20)),
    ):
        memory = segments()
        ring = RecordRing.create(memory, IDENTITY, keep)
        ring.append(b"a record")
        memory[0][256 + 16] ^= 1
        with pytest.raises(JournalDamaged, match="at place 0"):
            list(ring.records())
        with pytest.raises(JournalDamaged, match="at place 0"):
            call(ring)
        with pytest.raises(NeverCreated):
            RecordRing.open(memory, keep)


def test_a_damaged_length_is_found() -> None:
    """A length is damage that crosses the segment's end, or that makes padding of a record."""
    memory = segments()
    ring = RecordRing.create(memory, IDENTITY, keep)
    for _ in range(60):
        # No sum of bytes tells an empty record from padding.
        ring.append()
    assert ring.head > 768
    words = memory[0].cast("Q")
    for length in (0xFFFF, 0xFFFFFFFF):
        words[32] |= length
        with pytest.raises(JournalDamaged):
            contents(memory)
