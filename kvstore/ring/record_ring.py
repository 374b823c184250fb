"""A ring of records in memory that survives the process, with the live ones kept by a cleaner."""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn, Self, TypeAlias

from xxhash import xxh64_intdigest

from kvstore.ring.errors import (
    JournalDamaged,
    JournalUnusable,
    RecordTooLarge,
    RingFull,
)
from kvstore.ring.header import WORD_MASK, MemoryHeader, Payload, commit, withdraw
from kvstore.ring.ring_reader import (
    ALIGNMENT_BITS,
    HEAD_WORD,
    LOW,
    PADDING,
    RECORD_HEADER_BYTES,
    ROUND,
    SEGMENT_HEADER_BYTES,
    TAIL_WORDS,
    Content,
    ReadRecord,
    RingReader,
    check_sizes,
    ring_header,
    segment_header,
)

# The share of a segment that a record may take. Padding before a segment's end is smaller.
_LARGEST_SHARE: Final = 8
# Records that an append cleans, above this fill. While at most half of the bytes are live, each
# such append frees more than it takes, whatever the order of live and dead ones is.
RECORDS_PER_APPEND: Final = 4
_FILL_NUMERATOR: Final = 7
_FILL_DENOMINATOR: Final = 8
# A place, the payload there, and True if the record was ended.
RingRecord: TypeAlias = tuple[int, Content, bool]
# Returns what the cleaner keeps of a payload.
StillLive: TypeAlias = Callable[[memoryview], Payload | None]
_NOTHING: Final[Mapping[int, ReadRecord]] = MappingProxyType({})


def drop(payload: memoryview) -> None:
    """Keeps nothing of a payload."""
    del payload


class RecordRing:
    """A ring of records over equal segments of memory, such as mapped memfds of 64 MiB.

    A *place* is the number of bytes that were ever in front of a record, over all laps. Places
    only grow, and are multiples of 16. A record is, in the machine's byte order::

        u64 commit    payload's length | place / 16 modulo 2**32 << 32, written last
        u64 sum       xxh64 of the payload, seeded with the place and the ring's identity
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
        self._reader = reader = RingReader(segments, header)
        self._words_of = reader.words_of
        self._control = self._words_of[0]
        self._usable = reader.usable
        self._all = reader.all_bytes
        self._largest = self._usable // _LARGEST_SHARE & -(1 << ALIGNMENT_BITS)
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
        check_sizes(segments)
        headers = [segment_header(segments, number, identity) for number in range(len(segments))]
        # The first segment's header is withdrawn before anything else changes.
        for header, segment in zip(headers, segments, strict=True):
            header.write(segment)
        made = cls(segments, headers[0], still_live, still_ended)
        made._control[HEAD_WORD] = 0
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
        known: Mapping[int, ReadRecord] = _NOTHING,
    ) -> Self:
        """Returns the ring that an earlier process left in some memory, ready for more records.

        Reads every record once, about 1 us each, and writes nothing. Calls ``seen`` with each,
        as ``records`` yields them, so a start needs no second turn over the ring. ``known`` are
        those that a :class:`RingFollower` of this ring read: only their words are read again.
        Segments come in the order of ``create``. Raises :class:`NeverCreated`,
        :class:`OtherVersion`, :class:`WrongMemory` if a segment is of another ring, number or
        size, and :class:`JournalDamaged` if any committed record is not whole.
        """
        opened = cls(segments, ring_header(segments), still_live, still_ended)
        opened._recover(seen, known)
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
        return self._largest - RECORD_HEADER_BYTES

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
        step = (size + ROUND) & -16
        at = self._head
        if at + step > self._limit or step > self._largest:
            at = self._prepare(step)
        # As _write does, with fewer steps, since each verb appends.
        offset = at - self._base
        words = self._words
        self._memory[offset + 16 : offset + 16 + size] = payload
        word = offset >> 3
        words[word + 1] = xxh64_intdigest(payload, self._salt + at)
        words[word] = size | (at >> 4 & 0xFFFFFFFF) << 32
        self._head = self._control[HEAD_WORD] = at + step
        return at

    def end(self, place: int) -> bool:
        """Ends the record at a place, which was not ended before, by one store.

        Returns False, and changes nothing, if the cleaner copied it to another place since.
        """
        if place < self._tail:
            return False
        offset = place - self._base
        if offset >= SEGMENT_HEADER_BYTES:
            # It is in the head's segment, as most are that end.
            self._words[(offset >> 3) + 1] ^= WORD_MASK
            return True
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
        self._control[HEAD_WORD] = stop
        while count and at < stop:
            found = self._reader.read(at)
            if found is None:
                self._fail(JournalDamaged(f"the record at place {at} is damaged"))
            payload, _, end, is_ended, _ = found
            if payload is not None:
                assert isinstance(payload, memoryview)  # it is no copy
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
            found = self._reader.read(at)
            if found is None:
                raise JournalDamaged(f"the record at place {at} is damaged")
            payload, _, end, is_ended, _ = found
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
        first = self._control[HEAD_WORD] = self._head
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
        step = (size + ROUND) & -16
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
            self._words[word + 1] = self._reader.padding_sum(self._head)
            self._words[word] = PADDING | (self._head >> ALIGNMENT_BITS & LOW) << 32
            self._head = self._control[HEAD_WORD] = self._segment_end
        self._enter(self._head)

    def _write(self, payload: Payload, size: int, step: int, mask: int) -> None:
        """Writes a record at the head, where it fits, and moves the head behind it."""
        at = self._head
        offset = at - self._base
        words = self._words
        self._memory[offset + 16 : offset + 16 + size] = payload
        words[(offset >> 3) + 1] = xxh64_intdigest(payload, self._salt + at) ^ mask
        words[offset >> 3] = size | (at >> 4 & 0xFFFFFFFF) << 32
        self._head = self._control[HEAD_WORD] = at + step

    def _recover(
        self, seen: Callable[[RingRecord], object], known: Mapping[int, ReadRecord]
    ) -> None:
        """Finds tail and head, and reads every record between them."""
        whole = self._reader.tail_copies()
        if not whole:
            raise JournalDamaged("no copy of the ring's tail is whole")
        self._tail, newest = max(whole)
        self._next_tail = 1 - newest
        stored = self._reader.head
        if not self._tail <= stored <= self._tail + self._all or (self._tail | stored) % 16:
            raise JournalDamaged(f"the ring has tail {self._tail} and head {stored}")
        at = self._tail
        while at < stored:
            before = known.get(at)
            read = None if before is None else self._reader.read_again(at, before)
            read = read or self._reader.read(at)
            if read is None:
                raise JournalDamaged(f"the record at place {at} is damaged")
            if read.payload is not None:
                seen((at, read.payload, read.is_ended))
            at = read.end
        # Behind the stored head, the record of an append that did not return.
        late = self._reader.read(at)
        self._head = late.end if late else at
        if late and late.payload is not None:
            seen((at, late.payload, late.is_ended))
        if at != stored or (late and self._reader.read(self._head)):
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
        word = TAIL_WORDS + 2 * self._next_tail
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
