"""A page store in memory that loses, delays, spoils, evicts and answers late, as a test says."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from threading import RLock
from typing import TypeVar

import structlog

from kvstore.service.clock import MONOTONIC, Clock
from kvstore.storage.page_store import (
    Content,
    Done,
    PageKey,
    PageRead,
    PageWrite,
    Presence,
    ReadAnswer,
    StoreCounters,
    StoreFacts,
    StoreState,
    StoreUse,
    checksum_of,
    size_of,
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")
QUEUE_BYTES = 1 << 20
FACTS = StoreFacts(shared=False, loses_silently=False, look_seconds=0.0)
# Bytes of a transfer under way, which no page has.
UNDER_WAY = 0xEE


@dataclass
class StoredPage:
    """A page with its bytes, and the checksum that its writer gave."""

    page: PageWrite
    data: bytearray
    checksum: int


@dataclass(eq=False)
class _Write:
    page: PageWrite
    content: Content
    checksum: int | None
    done: Done


@dataclass(eq=False)
class _Read:
    """Pages on their way to a reader, as they were when the read began; None for a miss."""

    done: Callable[[ReadAnswer], None]
    deadline: float
    begun: float
    pages: list[tuple[PageRead, StoredPage] | None] = field(default_factory=list)
    is_answered: bool = False

    @property
    def page_bytes(self) -> int:
        """Bytes of the pages that were found."""
        return sum(size_of(each[0].into) for each in self.pages if each is not None)


@dataclass
class Medium:
    """The pages, which outlive a page store. Several page stores may share them."""

    pages: dict[PageKey, StoredPage] = field(default_factory=dict)
    mutex: RLock = field(default_factory=RLock)


class MemoryPageStore:
    """Pages in a dictionary. Thread-safe.

    Calls are carried out on the caller's thread before they return. While the page store is
    ``held``, they wait in ``waiting`` instead, until ``let_go`` or ``carry_out``. The clock is a
    test's own. Reads that wait end by ``tick``, at their deadlines or after ``read_seconds``. Each
    page of a ``look`` takes ``look_seconds`` of that clock, which ``pass_time`` moves.

    With ``forgets_namespaces`` a removal takes all pages of its namespaces along. A page store that
    ``is_careless`` has the fault that contract tests have to find: it goes on with a transfer into
    its caller's memory after the answer.
    """

    def __init__(
        self,
        medium: Medium | None = None,
        *,
        clock: Clock = MONOTONIC,
        pass_time: Callable[[float], None] = lambda _: None,
        facts: StoreFacts = FACTS,
        queue_bytes: int = QUEUE_BYTES,
        read_seconds: float = inf,
        forgets_namespaces: bool = False,
        is_careless: bool = False,
    ) -> None:
        self.medium = Medium() if medium is None else medium
        self.lost: Callable[[Sequence[PageKey]], None] = lambda _: None
        self.facts = facts
        self.state = StoreState.OPEN
        self.held = False
        self.waiting: list[Callable[[], None]] = []
        self._clock = clock
        self._pass_time = pass_time
        self._queue_bytes = queue_bytes
        self._read_seconds = read_seconds
        self._forgets_namespaces = forgets_namespaces
        self._is_careless = is_careless
        self._mutex = self.medium.mutex
        self._pages = self.medium.pages
        self._writes: dict[PageKey, _Write] = {}
        self._reads: list[_Read] = []
        self._queued_bytes = 0
        self._counters = StoreCounters(recovered_pages=len(self._pages))

    # The interface.

    @property
    def is_empty(self) -> bool:
        """True if there is no page. Others may write to a shared medium."""
        return not (self._pages or self.facts.shared)

    @property
    def reading_bytes(self) -> int:
        """Bytes being read."""
        return sum(each.page_bytes for each in self._reads)

    @property
    def reading_room(self) -> int:
        """Bytes that may be read in addition."""
        return self._queue_bytes - self.reading_bytes

    @property
    def writing_room(self) -> int:
        """Bytes that may be queued in addition."""
        return self._queue_bytes - self._queued_bytes

    def look(self, keys: Iterable[PageKey], deadline: float) -> int:
        """Returns the number of leading pages that were found until the deadline."""
        count = 0
        for key in keys:
            self._pass_time(self.facts.look_seconds)
            with self._mutex:
                if not self._finds(key) or self._clock() > deadline:
                    break
            count += 1
        return count

    def there(self, keys: Sequence[PageKey]) -> list[Presence]:
        """Returns the presence of each page."""
        with self._mutex:
            return [
                Presence.STORED
                if self._finds(key)
                else Presence.PENDING
                if key in self._writes
                else Presence.ABSENT
                for key in keys
            ]

    def write(self, page: PageWrite, content: Content, done: Done, *, checksum: int | None) -> bool:
        """Begins to write a page, unless it is there or too large."""
        size = size_of(content)
        write = _Write(page, content, checksum or None, done)
        with self._mutex:
            fits = 0 < size <= self.writing_room
            known = page.key in self._writes or page.key in self._pages
            if self.state is not StoreState.OPEN or known or not fits:
                self._counters.refused_writes += 1
                return False
            self._writes[page.key] = write
            self._queued_bytes += size
        self._begin(lambda: self._finish_write(write, size))
        return True

    def read(
        self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None], deadline: float
    ) -> None:
        """Begins to read pages. Those that take more bytes than may be read are misses."""
        now = self._clock()
        read = _Read(done, min(deadline, now + self._read_seconds), now)
        with self._mutex:
            self._reads.append(read)
            for each in wanted:
                for part in each.into:
                    part[:] = bytes([UNDER_WAY]) * part.nbytes
                stored = self._pages.get(each.key) if self.state is StoreState.OPEN else None
                fits = size_of(each.into) <= self.reading_room
                self._counters.refused_reads += stored is not None and not fits
                read.pages.append((each, stored) if stored is not None and fits else None)
        self._begin(lambda: self._finish_read(read))

    def remove(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes pages and those after them."""
        self._remove(lambda: self._after(set(keys)), done)

    def remove_corrupt(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes pages and those after them, as one that hosts share does."""
        self.remove(keys, done)

    def remove_namespace(self, namespace: bytes, done: Done) -> None:
        """Removes every page of a namespace."""
        self._remove(lambda: self._in({namespace}), done)

    def use(self) -> StoreUse:
        """Returns the current content."""
        with self._mutex:
            count = len(self._pages)
            counters = replace(self._counters)
            return StoreUse(self.state, 0, count, count, self._queued_bytes, counters)

    def close(self) -> None:
        """Carries out what waits, and answers nothing from then on."""
        self.let_go()
        with self._mutex:
            self.state = StoreState.CLOSED

    # The faults.

    def carry_out(self, number: int) -> None:
        """Carries out one of the calls that wait, whatever came before it."""
        self.waiting.pop(number)()

    def let_go(self) -> None:
        """Carries out all that waits, and whatever comes from now on."""
        self.held = False
        while self.waiting:
            self.carry_out(0)

    def tick(self) -> None:
        """Ends the reads whose deadlines have passed. Their transfers go on."""
        with self._mutex:
            due = [each for each in self._reads if each.deadline <= self._clock()]
        for each in due:
            self._answer(each, [None] * len(each.pages), 0)

    def lose(self, key: PageKey) -> None:
        """Loses a page without a word."""
        with self._mutex:
            self._pages.pop(key, None)

    def evict(self, key: PageKey) -> None:
        """Evicts a page, and says so."""
        with self._mutex:
            evicted = self._pages.pop(key, None) is not None
            self._counters.evicted_pages += evicted
        if evicted:
            self._call(self.lost, [key])

    def spoil(self, key: PageKey, at: int = 0) -> None:
        """Changes a byte of a page."""
        with self._mutex:
            self._pages[key].data[at] ^= 0xFF

    def swap(self, key: PageKey, other: PageKey) -> None:
        """Exchanges the bytes of two pages, each with its own checksum."""
        with self._mutex:
            one, two = self._pages[key], self._pages[other]
            one.data, two.data = two.data, one.data

    def go_away(self, state: StoreState = StoreState.AWAY) -> None:
        """Answers nothing from now on, and no call that waits either."""
        with self._mutex:
            self.state = state

    def come_back(self) -> None:
        """Answers again, with the pages of before."""
        with self._mutex:
            self.state = StoreState.OPEN

    # The work.

    def _begin(self, call: Callable[[], None]) -> None:
        if self.held:
            self.waiting.append(call)
        else:
            call()

    def _finds(self, key: PageKey) -> bool:
        return self.state is StoreState.OPEN and key in self._pages

    def _finish_write(self, write: _Write, size: int) -> None:
        key = write.page.key
        with self._mutex:
            self._queued_bytes -= size
            current = self._writes.get(key) is write
            if current:
                del self._writes[key]
            written = current and self.state is StoreState.OPEN and key not in self._pages
            if written:
                data = bytearray(b"".join(write.content))
                checksum = write.checksum or checksum_of(write.content)
                self._pages[key] = StoredPage(write.page, data, checksum)
                self._counters.written_pages += 1
                self._counters.written_bytes += size
        self._call(write.done, written)

    def _finish_read(self, read: _Read) -> None:
        corrupt: list[PageKey] = []
        with self._mutex:
            if read.is_answered and not self._is_careless:
                return
            checksums = [each and self._transfer(*each, corrupt) for each in read.pages]
            size = sum(
                size_of(each[0].into)
                for each, checksum in zip(read.pages, checksums, strict=True)
                if each is not None and checksum is not None
            )
        if corrupt:
            self._call(self.lost, corrupt)
        self._answer(read, checksums, size)

    def _transfer(self, read: PageRead, stored: StoredPage, corrupt: list[PageKey]) -> int | None:
        """Copies a page to its reader. Returns its checksum, or None for a miss."""
        is_open = self.state is StoreState.OPEN
        if not is_open or size_of(read.into) != len(stored.data):
            return None
        start = 0
        for part in read.into:
            part[:] = stored.data[start : start + part.nbytes]
            start += part.nbytes
        if checksum_of(read.into) == stored.checksum:
            return stored.checksum
        self._counters.corrupt_pages += 1
        if self._pages.get(read.key) is stored:
            del self._pages[read.key]
            corrupt.append(read.key)
        return None

    def _answer(self, read: _Read, checksums: Sequence[int | None], size: int) -> None:
        with self._mutex:
            if read.is_answered:
                return
            read.is_answered = True
            self._reads.remove(read)
            self._counters.read_pages += sum(each is not None for each in checksums)
            self._counters.read_bytes += size
        self._call(read.done, ReadAnswer(tuple(checksums), size, self._clock() - read.begun))

    def _remove(self, named: Callable[[], set[PageKey]], done: Done) -> None:
        with self._mutex:
            taken = self.state is StoreState.OPEN
            gone = named() if taken else set()
            if self._forgets_namespaces:
                gone = self._in({each.namespace for each in gone})
            for key in gone:
                self._counters.removed_pages += self._pages.pop(key, None) is not None
                self._writes.pop(key, None)
        if taken:
            self._begin(lambda: self._call(done, self.state is StoreState.OPEN))
        else:
            self._call(done, value=False)

    def _in(self, namespaces: set[bytes]) -> set[PageKey]:
        return {key for key in (*self._pages, *self._writes) if key.namespace in namespaces}

    def _after(self, keys: set[PageKey]) -> set[PageKey]:
        """Returns pages and those after them. A page whose parent is missing may be after any."""
        named, gone = {each.namespace for each in keys}, set(keys)
        pages = [each.page for each in (*self._pages.values(), *self._writes.values())]
        pages = [each for each in pages if each.key.namespace in named]
        roots = {PageKey(each, each) for each in named}
        while True:
            there = roots.union(each.key for each in pages) - gone
            more = {
                each.key for each in pages if PageKey(each.key.namespace, each.parent) not in there
            }
            if more <= gone:
                return gone
            gone |= more

    def _call(self, function: Callable[[T], None], value: T) -> None:
        try:
            function(value)
        except Exception:
            log.exception("page_store_callback_failed")
