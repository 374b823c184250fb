"""The reading of a ring's memory, also while another process writes it."""

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from xxhash import xxh64_intdigest

from kvstore.ring.errors import WrongMemory
from kvstore.ring.header import WORD_MASK, MemoryHeader, read_header

KIND: Final = "ring of records"
# In front of each segment: its header, and in the first one the head and two copies of the tail,
# each in a cache line of its own.
SEGMENT_HEADER_BYTES: Final = 256
HEAD_WORD: Final = 128 >> 3
TAIL_WORDS: Final = 192 >> 3
# In front of each record: the committing word and the sum.
RECORD_HEADER_BYTES: Final = 16
# Places and sizes of records are multiples of 16, so a header always fits before a segment's end.
ALIGNMENT_BITS: Final = 4
ROUND: Final = RECORD_HEADER_BYTES + (1 << ALIGNMENT_BITS) - 1
LOW: Final = (1 << 32) - 1
# The length of padding, which goes to its segment's end.
PADDING: Final = LOW
SMALLEST_SEGMENT_BYTES: Final = 1024
LARGEST_SEGMENT_BYTES: Final = 1 << 34
# A payload as it was read: a copy, or a view of the memory.
Content: TypeAlias = bytes | memoryview


class ReadRecord(NamedTuple):
    """A record as it was read: its payload, its sum, and the place behind it.

    ``digest`` is the sum of a record that was not ended. Padding has the payload None. ``word`` is
    the one that committed the record.
    """

    payload: Content | None
    digest: int
    end: int
    is_ended: bool
    word: int


class RingReader:
    """Reads the records of a ring by their places. Writes nothing."""

    def __init__(self, segments: Sequence[memoryview], header: MemoryHeader) -> None:
        self.words_of = [each.cast("Q") for each in segments]
        self.segment_bytes = segments[0].nbytes
        self.usable = self.segment_bytes - SEGMENT_HEADER_BYTES
        self.all_bytes = self.usable * len(segments)
        self._salt = header.salt
        self._readable = [each.toreadonly() for each in segments]

    @property
    def head(self) -> int:
        """The place of the next record, as the memory says. The record before may lack in it."""
        return self.words_of[0][HEAD_WORD]

    def tail_copies(self) -> list[tuple[int, int]]:
        """Returns the copies of the tail that are whole, each with its number."""
        control = self.words_of[0]
        copies = [control[TAIL_WORDS + each : TAIL_WORDS + each + 2].tolist() for each in (0, 2)]
        return [
            (tail, number)
            for number, (tail, complement) in enumerate(copies)
            if tail ^ complement == WORD_MASK
        ]

    def read(self, at: int, *, copies: bool = False) -> ReadRecord | None:
        """Returns the record at a place, or None if it is not whole.

        The payload is a view of the memory. With ``copies`` it is a copy, taken before its sum is
        compared, so a writer cannot change it any more.
        """
        number, offset = divmod(at % self.all_bytes, self.usable)
        offset += SEGMENT_HEADER_BYTES
        words = self.words_of[number]
        word = words[offset >> 3]
        if word >> 32 != at >> ALIGNMENT_BITS & LOW:
            return None
        size = word & LOW
        digest = words[(offset >> 3) + 1]
        if size == PADDING:
            end = at + self.segment_bytes - offset
            whole = digest == self.padding_sum(at)
            return ReadRecord(None, digest, end, is_ended=False, word=word) if whole else None
        step = (size + ROUND) & -16
        # A damaged length may cross the segment's end, where the slice ends and the sum differs.
        start = offset + RECORD_HEADER_BYTES
        payload: Content = self._readable[number][start : start + size]
        if copies:
            payload = bytes(payload)
        found = xxh64_intdigest(payload, self._salt + at)
        if digest not in (found, found ^ WORD_MASK):
            return None
        return ReadRecord(payload, found, at + step, digest != found, word)

    def read_again(self, at: int, known: ReadRecord) -> ReadRecord | None:
        """Returns a record that was read at this place before, with its end as it is now.

        Compares its words alone. Returns None if another record is there.
        """
        number, offset = divmod(at % self.all_bytes, self.usable)
        words, place = self.words_of[number], SEGMENT_HEADER_BYTES + offset >> 3
        if words[place] != known.word:
            return None
        payload, first_digest, end, was_ended, word = known
        digest = words[place + 1]
        is_ended = digest != first_digest
        if is_ended and (payload is None or digest != first_digest ^ WORD_MASK):
            return None
        # The next server reads thousands of records while nobody answers, and _replace is slow.
        return (
            known
            if is_ended == was_ended
            else ReadRecord(payload, first_digest, end, is_ended, word)
        )

    def padding_sum(self, at: int) -> int:
        """Returns the sum of padding, which no record at that place has: places are even."""
        return xxh64_intdigest(b"", self._salt + at + 1)


def check_sizes(segments: Sequence[memoryview]) -> None:
    """Raises ValueError unless a ring can be over these segments."""
    sizes = {each.nbytes for each in segments}
    if len(sizes) != 1:
        raise ValueError(f"a ring has segments of one size, not of {sorted(sizes)} bytes")
    (size,) = sizes
    if size % 16 or not SMALLEST_SEGMENT_BYTES <= size <= LARGEST_SEGMENT_BYTES:
        raise ValueError(f"a segment has 1 KiB to 16 GiB in steps of 16 bytes, not {size} bytes")


def segment_header(segments: Sequence[memoryview], number: int, identity: bytes) -> MemoryHeader:
    """Returns the header of one segment."""
    return MemoryHeader(KIND, identity, (number, len(segments), segments[number].nbytes, 0))


def ring_header(segments: Sequence[memoryview]) -> MemoryHeader:
    """Returns the header of the first segment, after a look at all of them.

    Raises :class:`NeverCreated`, :class:`OtherVersion`, or :class:`WrongMemory` if a segment is of
    another ring, number or size.
    """
    check_sizes(segments)
    first = read_header(segments[0])
    for number, segment in enumerate(segments):
        expected = segment_header(segments, number, first.identity)
        found = read_header(segment)
        found.check(expected.kind, expected.sizes)
        if found.identity != expected.identity:
            raise WrongMemory(f"segment {number} is of another ring than segment 0")
    return first
