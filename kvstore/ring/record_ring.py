"""A ring of records in memory that survives the process, with the live ones kept by a cleaner."""

from array import array
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NoReturn, Self, TypeAlias

from xxhash import xxh3_64_intdigest

from kvstore.ring.errors import (
    JournalDamaged,
    JournalUnusable,
    RecordTooLarge,
    RingFull,
    WrongMemory,
)
from kvstore.ring.header import (
    WORD_MASK,
    MemoryHeader,
    Payload,
    commit,
    read_header,
    withdraw,
)

KIND: Final = "ring of records"
# In front of each segment: its header, and in the first one the head and two copies of the tail,
# each in a cache line of its own.
SEGMENT_HEADER_BYTES: Final = 256
_HEAD: Final = 128 >> 3
_TAILS: Final = 192 >> 3
# In front of each record: the committing word and the sum.
_RECORD_HEADER_BYTES: Final = 16
# Places and sizes of records are multiples of 16, so a header always fits before a segment's end.
_ALIGNMENT_BITS: Final = 4
_ROUND: Final = _RECORD_HEADER_BYTES + (1 << _ALIGNMENT_BITS) - 1
_LOW: Final = (1 << 32) - 1
# The length of padding, which goes to its segment's end.
_PADDING: Final = _LOW
# The share of a segment that a record may take. Padding before a segment's end is smaller.
_LARGEST_SHARE: Final = 8
SMALLEST_SEGMENT_BYTES: Final = 1024
LARGEST_SEGMENT_BYTES: Final = 1 << 34
# Records that an append cleans, above this fill. While at most half of the bytes are live, each
# such append frees more than it takes, whatever the order of live and dead ones is.
RECORDS_PER_APPEND: Final = 4
_FILL_NUMERATOR: Final = 7
_FILL_DENOMINATOR: Final = 8
# A place, the payload there, and True if the record was ended.
RingRecord: TypeAlias = tuple[int, memoryview, bool]
# Returns what the cleaner keeps of a payload.
StillLive: TypeAlias = Callable[[memoryview], Payload | None]


def drop(payload: memoryview) -> None:
    """Keeps nothing of a payload."""
    del payload


class RecordRing:
    """A ring of records over equal segments of memory, such as mapped memfds of 64 MiB.

    A *place* is the number of bytes that were ever in front of a record, over all laps. Places
    only grow, and are multiples of 16. A record is, in the machine's byte order::

        u64 commit    payload's length | place / 16 modulo 2**32 << 32, written last
        u64 sum       xxh3-64 of the payload, seeded with the place and the ring's identity
        payload, then zero to 15 bytes without meaning

    A record does not cross a segment's end: padding fills the segment. The sum has the place in
    it, so an earlier lap's bytes are never read as new ones. One store *ends* a record: its sum
    becomes the complement.

    After each record the ring stores its *head*, the place of the next one. A record that the
    head counts and that is not whole was changed by a stray write, and makes everything unusable.
    Behind the head one whole record may follow, whose append did not return. Whatever else is
    there is torn or old, and is dropped silently.

    The owner has to make the ring twice as large as its live records ever are. ``append`` then
    always finds space, since it cleans as it goes. It never overwrites a record that was not
    cleaned.

    Under a mutex of the owner. ``still_live(payload)`` tells the cleaner about one record: it
    returns None for a dead one, and else the payload to keep, which is the same or a smaller one.
    ``still_ended(payload)`` does so for a record that was ended, and what is kept of it stays
    ended. Neither may call the ring, nor keep the payload, whose memory is reused.

    After :class:`RingFull` or :class:`JournalDamaged` the ring is given up: it takes no further
    record, and its memory cannot be opened.
    """

    def __init__(
        self,
        segments: Sequence[memoryview],
        header: MemoryHeader,
        still_live: StillLive,
        still_ended: StillLive,
    ) -> None:
        """Use ``create`` or ``open``."""
        self.identity = header.identity
        self._still_live = still_live
        self._still_ended = still_ended
        self._salt = header.salt
        self._memories = list(segments)
        self._readable = [each.toreadonly() for each in segments]
        self._words_of = [each.cast("Q") for each in segments]
        self._control = self._words_of[0]
        self._segment_bytes = segments[0].nbytes
        self._usable = self._segment_bytes - SEGMENT_HEADER_BYTES
        self._all = self._usable * len(segments)
        self._largest = self._usable // _LARGEST_SHARE & -(1 << _ALIGNMENT_BITS)
        # The rest is the cleaner's, for a copy of one record and the padding before it.
        self._most = self._all - 2 * self._largest
        self._soft = self._most * _FILL_NUMERATOR // _FILL_DENOMINATOR
        # Why the ring takes no more records, once it was given up.
        self._reason: str | None = None
        self._head = 0
        self._tail = 0
        # Of the two copies of the tail, the one to write next.
        self._next_tail = 0
        # Set by _enter: the head's segment, its end, and what a place minus its offset there is.
        self._memory = self._memories[0]
        self._words = self._words_of[0]
        self._base = 0
        self._segment_end = 0
        # An append that ends at or below this place needs neither cleaning nor another segment.
        self._limit = 0

    @classmethod
    def create(
        cls,
        segments: Sequence[memoryview],
        identity: bytes,
        still_live: StillLive,
        still_ended: StillLive = drop,
    ) -> Self:
        """Returns an empty ring over some memory, whatever bytes it has.

        ``identity`` is 16 random bytes. Each segment is a writable memory of bytes; all have the
        same size, a multiple of 16 from 1 KiB to 16 GiB. The headers are committed last, so
        ``open`` refuses a ring whose creation was cut off. Raises ValueError for segments of
        unequal or unfit sizes.
        """
        _check_sizes(segments)
        headers = [_header(segments, number, identity) for number in range(len(segments))]
        # The first segment's header is withdrawn before anything else changes.
        for header, segment in zip(headers, segments, strict=True):
            header.write(segment)
        made = cls(segments, headers[0], still_live, still_ended)
        made._control[_HEAD] = 0
        for _ in range(2):
            made._write_tail(0)
        made._enter(0)
        for segment in segments:
            commit(segment)
        return made

    @classmethod
    def open(
        cls,
        segments: Sequence[memoryview],
        still_live: StillLive,
        seen: Callable[[RingRecord], object] = len,
        still_ended: StillLive = drop,
    ) -> Self:
        """Returns the ring that an earlier process left in some memory, ready for more records.

        Reads every record once, about 1 us each, and writes nothing. Calls ``seen`` with each,
        as ``records`` yields them, so a start needs no second turn over the ring.
        Segments come in the order of ``create``. Raises :class:`NeverCreated`,
        :class:`OtherVersion`, :class:`WrongMemory` if a segment is of another ring, number or
        size, and :class:`JournalDamaged` if any committed record is not whole.
        """
        _check_sizes(segments)
        first = read_header(segments[0])
        for number, segment in enumerate(segments):
            expected = _header(segments, number, first.identity)
            found = read_header(segment)
            found.check(expected.kind, expected.sizes)
            if found.identity != expected.identity:
                raise WrongMemory(f"segment {number} is of another ring than segment 0")
        opened = cls(segments, first, still_live, still_ended)
        opened._recover(seen)
        return opened

    @property
    def head(self) -> int:
        """The place of the next record."""
        return self._head

    @property
    def tail(self) -> int:
        """The place of the oldest record."""
        return self._tail

    @property
    def used_bytes(self) -> int:
        """The bytes between tail and head, dead records and padding included."""
        return self._head - self._tail

    @property
    def capacity_bytes(self) -> int:
        """The most that ``used_bytes`` is after an append.

        An append cleans by itself above seven eighths of it. An owner that cleans beside its
        requests keeps ``used_bytes`` below that.
        """
        return self._most

    @property
    def largest_bytes(self) -> int:
        """The size of the largest payload: about an eighth of a segment."""
        return self._largest - _RECORD_HEADER_BYTES

    def append(self, *parts: "Payload | array[int]") -> int:
        """Appends a record whose payload is the parts in a row, and returns its place.

        The record is committed when this returns. Above seven eighths of ``capacity_bytes`` it
        first cleans four of the oldest records, and more only if the record would not fit. Raises
        :class:`RecordTooLarge`, which changes nothing, and :class:`RingFull` or
        :class:`JournalDamaged`, after which the ring is given up.

        A record of 32 pages in five parts, 2.9 kB, takes 1.6 us, and 3.6 us within an insert.
        One of a page takes 1.1 us. Cleaning takes 1.3 us a record, and 1.4 us more to copy one
        (decision 0047).
        """
        payload = b"".join(parts)
        size = len(payload)
        step = (size + _ROUND) & -16
        at = self._head
        if at + step > self._limit or step > self._largest:
            at = self._prepare(step)
        # As _write does, with fewer steps, since each verb appends.
        offset = at - self._base
        words = self._words
        self._memory[offset + 16 : offset + 16 + size] = payload
        word = offset >> 3
        words[word + 1] = xxh3_64_intdigest(payload, self._salt + at)
        words[word] = size | (at >> 4 & 0xFFFFFFFF) << 32
        self._head = self._control[_HEAD] = at + step
        return at

    def end(self, place: int) -> bool:
        """Ends the record at a place, which was not ended before, by one store.

        Returns False, and changes nothing, if the cleaner copied it to another place since.
        """
        if place < self._tail:
            return False
        number, offset = divmod(place % self._all, self._usable)
        self._words_of[number][(SEGMENT_HEADER_BYTES + offset >> 3) + 1] ^= WORD_MASK
        return True

    def clean(self, count: int) -> int:
        """Cleans the oldest records, at most ``count``, and returns the bytes that this freed.

        Appends what ``still_live`` or ``still_ended`` returns for each, then moves the tail behind
        them. It stops at the head of when it began. A process killed in between leaves some
        records twice. The bytes freed can be negative by some padding. Raises as ``append`` does.
        """
        self._check_usable()
        used = self.used_bytes
        at, stop = self._tail, self._head
        self._control[_HEAD] = stop
        while count and at < stop:
            found = self._read(at)
            if found is None:
                self._fail(JournalDamaged(f"the record at place {at} is damaged"))
            payload, end, is_ended = found
            if payload is not None:
                count -= 1
                live = (self._still_ended if is_ended else self._still_live)(payload)
                if live is not None:
                    self._keep(live, at, WORD_MASK if is_ended else 0)
            at = end
        self._move_tail(at)
        return used - self.used_bytes

    def records(self) -> Iterator[RingRecord]:
        """Yields each record, the oldest first: place, payload, and True if it was ended.

        Payloads are read-only views of the ring's memory. The ring must not be changed before
        the last one was read. Raises :class:`JournalDamaged`.
        """
        at, stop = self._tail, self._head
        while at < stop:
            found = self._read(at)
            if found is None:
                raise JournalDamaged(f"the record at place {at} is damaged")
            payload, end, is_ended = found
            if payload is not None:
                yield at, payload, is_ended
            at = end

    def give_up(self, reason: str) -> None:
        """Makes the memory one that cannot be opened, so that the next start is clean.

        For an owner that goes on without a journal. The reason is in the message of the
        :class:`JournalUnusable` that later calls raise. Idempotent.
        """
        withdraw(self._memories[0])
        self._limit = 0
        self._reason = self._reason or reason

    def _prepare(self, step: int) -> int:
        """Makes space for a record of ``step`` bytes at the head, and returns the head."""
        self._check_usable()
        if step > self._largest:
            raise RecordTooLarge(
                f"a record of {step} bytes is over the ring's limit of {self._largest}"
            )
        first = self._control[_HEAD] = self._head
        if first + step > self._tail + self._soft:
            self.clean(RECORDS_PER_APPEND)
        while not self._fits(step, self._most):
            if self._tail >= first:
                self._fail(RingFull(f"all of {self.used_bytes} bytes are live"))
            self.clean(RECORDS_PER_APPEND)
        self._pad(step)
        self._set_limit()
        return self._head

    def _fits(self, step: int, most: int) -> bool:
        """Returns whether the ring has at most ``most`` bytes once the record is at the head."""
        end = self._head + step
        if end > self._segment_end:
            end = self._segment_end + step
        return end <= self._tail + most

    def _keep(self, payload: Payload, at: int, mask: int) -> None:
        """Appends what is live of the record at ``at``, all before which is cleaned.

        ``mask`` is what its sum is written with.
        """
        size = len(payload)
        step = (size + _ROUND) & -16
        if not self._fits(step, self._all):
            self._move_tail(at)
            if not self._fits(step, self._all):
                self._fail(RingFull(f"all of {self.used_bytes} bytes are live"))
        self._pad(step)
        self._write(payload, size, step, mask)

    def _pad(self, step: int) -> None:
        """Goes on to the next segment if a record of ``step`` bytes crosses this one's end."""
        if self._head + step <= self._segment_end:
            return
        if self._head < self._segment_end:
            word = (self._head - self._base) >> 3
            self._words[word + 1] = self._padding_sum(self._head)
            self._words[word] = _PADDING | (self._head >> _ALIGNMENT_BITS & _LOW) << 32
            self._head = self._control[_HEAD] = self._segment_end
        self._enter(self._head)

    def _write(self, payload: Payload, size: int, step: int, mask: int) -> None:
        """Writes a record at the head, where it fits, and moves the head behind it."""
        at = self._head
        offset = at - self._base
        words = self._words
        self._memory[offset + 16 : offset + 16 + size] = payload
        words[(offset >> 3) + 1] = xxh3_64_intdigest(payload, self._salt + at) ^ mask
        words[offset >> 3] = size | (at >> 4 & 0xFFFFFFFF) << 32
        self._head = self._control[_HEAD] = at + step

    def _read(self, at: int) -> tuple[memoryview | None, int, bool] | None:
        """Returns the payload at a place, the place behind it, and True if the record was ended.

        Returns None if the record is not whole.
        """
        number, offset = divmod(at % self._all, self._usable)
        offset += SEGMENT_HEADER_BYTES
        words = self._words_of[number]
        word = words[offset >> 3]
        if word >> 32 != at >> _ALIGNMENT_BITS & _LOW:
            return None
        size = word & _LOW
        digest = words[(offset >> 3) + 1]
        if size == _PADDING:
            end = at + self._segment_bytes - offset
            return (None, end, False) if digest == self._padding_sum(at) else None
        step = (size + _ROUND) & -16
        # A damaged length may cross the segment's end, where the slice ends and the sum differs.
        start = offset + _RECORD_HEADER_BYTES
        payload = self._readable[number][start : start + size]
        found = xxh3_64_intdigest(payload, self._salt + at)
        if digest not in (found, found ^ WORD_MASK):
            return None
        return payload, at + step, digest != found

    def _padding_sum(self, at: int) -> int:
        """Returns the sum of padding, which no record at that place has: places are even."""
        return xxh3_64_intdigest(b"", self._salt + at + 1)

    def _recover(self, seen: Callable[[RingRecord], object]) -> None:
        """Finds tail and head, and reads every record between them."""
        copies = [self._control[_TAILS + each : _TAILS + each + 2].tolist() for each in (0, 2)]
        whole = [
            (tail, number)
            for number, (tail, complement) in enumerate(copies)
            if tail ^ complement == WORD_MASK
        ]
        if not whole:
            raise JournalDamaged("no copy of the ring's tail is whole")
        self._tail, newest = max(whole)
        self._next_tail = 1 - newest
        stored = self._control[_HEAD]
        if not self._tail <= stored <= self._tail + self._all or (self._tail | stored) % 16:
            raise JournalDamaged(f"the ring has tail {self._tail} and head {stored}")
        at = self._tail
        while at < stored:
            read = self._read(at)
            if read is None:
                raise JournalDamaged(f"the record at place {at} is damaged")
            start, (payload, at, is_ended) = at, read
            if payload is not None:
                seen((start, payload, is_ended))
        # Behind the stored head, the record of an append that did not return.
        late = self._read(at)
        self._head = late[1] if late else at
        if late and late[0] is not None:
            seen((at, late[0], late[2]))
        if at != stored or (late and self._read(self._head)):
            raise JournalDamaged(f"the ring's head {stored} is damaged")
        self._enter(self._head)
        # The first change stores the head, which may be a record behind.
        self._limit = 0

    def _enter(self, at: int) -> None:
        """Makes the segment of a place the one that records are written to."""
        number, offset = divmod(at % self._all, self._usable)
        self._memory = self._memories[number]
        self._words = self._words_of[number]
        self._base = at - offset - SEGMENT_HEADER_BYTES
        self._segment_end = at - offset + self._usable
        self._set_limit()

    def _set_limit(self) -> None:
        self._limit = min(self._segment_end, self._tail + self._soft)

    def _move_tail(self, tail: int) -> None:
        """Frees what is before a place."""
        self._write_tail(tail)
        self._tail = tail
        self._set_limit()

    def _write_tail(self, tail: int) -> None:
        """Writes the older copy of the tail: a torn one is not the complement of itself."""
        word = _TAILS + 2 * self._next_tail
        self._control[word] = tail
        self._control[word + 1] = tail ^ WORD_MASK
        self._next_tail ^= 1

    def _check_usable(self) -> None:
        if self._reason is not None:
            raise JournalUnusable(f"the journal was given up: {self._reason}")

    def _fail(self, error: JournalUnusable) -> NoReturn:
        """Gives the ring up for an error, and raises it."""
        self.give_up(str(error))
        raise error


def _check_sizes(segments: Sequence[memoryview]) -> None:
    """Raises ValueError unless a ring can be over these segments."""
    sizes = {each.nbytes for each in segments}
    if len(sizes) != 1:
        raise ValueError(f"a ring has segments of one size, not of {sorted(sizes)} bytes")
    (size,) = sizes
    if size % 16 or not SMALLEST_SEGMENT_BYTES <= size <= LARGEST_SEGMENT_BYTES:
        raise ValueError(f"a segment has 1 KiB to 16 GiB in steps of 16 bytes, not {size} bytes")


def _header(segments: Sequence[memoryview], number: int, identity: bytes) -> MemoryHeader:
    """Returns the header of one segment."""
    return MemoryHeader(KIND, identity, (number, len(segments), segments[number].nbytes, 0))
