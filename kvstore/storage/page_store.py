"""A page store: everything slow that keeps whole pages by their digests, such as a slab's file.

Its users know this interface alone. A deadline is a time of ``kvstore.service.clock.MONOTONIC``, or
of the clock that the page store was made with. ``inf`` is no deadline.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import NamedTuple, Protocol, runtime_checkable

from xxhash import xxh3_64

# A page's bytes in one piece, or in one piece a rank.
Content = Sequence[memoryview]
Done = Callable[[bool], None]


class PageKey(NamedTuple):
    """A page's permanent name: digests of the namespace and of the page, 32 bytes each.

    ``segment`` is the digest of the first page of the page's segment, by which a shared page store
    chooses its place. It is empty where no place is chosen. It is no part of the name: keys are
    equal without it.
    """

    namespace: bytes
    digest: bytes
    segment: bytes = b""

    def __eq__(self, other: object) -> bool:
        """Returns True for the key of the same page."""
        return isinstance(other, PageKey) and self[:2] == other[:2]

    def __ne__(self, other: object) -> bool:
        """Returns True for anything but the key of the same page."""
        return not self == other

    def __hash__(self) -> int:
        """Returns a hash of the page's name."""
        return hash(self[:2])


class PageWrite(NamedTuple):
    """A page to be written: its key, its parent's digest, and how many of its tokens count.

    The parent of a sequence's first page is the namespace's digest.
    """

    key: PageKey
    parent: bytes
    valid_tokens: int


class PageRead(NamedTuple):
    """A wanted page and the buffer for its bytes, which is the page store's until the answer."""

    key: PageKey
    into: Content


class ReadAnswer(NamedTuple):
    """The pages that were read whole, in the order of the request; the others are misses.

    ``checksums`` are the xxh3-64 that they were compared with, None for a miss. After a miss the
    bytes of ``into`` are undefined. ``seconds`` is from the request to the last page, with the
    time in the queue.
    """

    checksums: tuple[int | None, ...]
    byte_count: int
    seconds: float

    @property
    def found(self) -> tuple[bool, ...]:
        """True for each page that was read whole."""
        return tuple(each is not None for each in self.checksums)

    @property
    def leading(self) -> int:
        """Number of whole pages before the first miss."""
        missed = (number for number, each in enumerate(self.checksums) if each is None)
        return next(missed, len(self.checksums))


class Presence(IntEnum):
    """The presence of a page. Only ABSENT is false."""

    ABSENT = 0
    PENDING = 1
    """A write of it was accepted, and neither finished nor removed since."""
    STORED = 2
    """A read would find it."""


class StoreState(Enum):
    """The state of a page store. Only an OPEN one accepts writes and answers reads."""

    OPEN = "open"
    AWAY = "away"
    """It answers nothing at present, and becomes OPEN by itself."""
    FAILED = "failed"
    """It refused a call. No page is written or read until it is opened again."""
    CLOSED = "closed"


class StoreFacts(NamedTuple):
    """Properties of a page store that never change.

    Other hosts use a ``shared`` one too. One that ``loses_silently`` may lose pages without a call
    of ``lost``. ``look_seconds`` is the usual time of ``look``, 0 if it asks only memory.
    """

    shared: bool
    loses_silently: bool
    look_seconds: float


@dataclass
class StoreCounters:
    """Counts since a page store was opened; each number only grows."""

    written_pages: int = 0
    written_bytes: int = 0
    read_pages: int = 0
    read_bytes: int = 0
    removed_pages: int = 0
    evicted_pages: int = 0
    refused_writes: int = 0
    refused_reads: int = 0
    corrupt_pages: int = 0
    """Pages read whose bytes are not those that were written."""
    unreadable_pages: int = 0
    recovered_pages: int = 0
    """At the start of a store that outlives its process: pages that it has from before."""
    torn_slots: int = 0
    """At such a start: headers that are torn or belong to another place."""
    orphaned_pages: int = 0
    """At such a start: pages without their parent, and older copies of a page."""


class StoreUse(NamedTuple):
    """The content of a page store at one moment, as far as it is known without asking others."""

    state: StoreState
    size_bytes: int = 0
    page_count: int = 0
    slot_count: int = 0
    queued_bytes: int = 0
    counters: StoreCounters = StoreCounters()


class PageStore(Protocol):
    """Whole pages by their keys. Thread-safe, and no call raises anything.

    Each failure is a miss, a refused write, or a removal that is answered with False. A page is
    served only if its bytes are those that were written under its key.

    Callbacks run on threads of the page store, or on the caller's before the call returns. They may
    call the page store, and must not wait for it. A callback that raises is logged. The page store
    calls none of them while it holds a lock.
    """

    lost: Callable[[Sequence[PageKey]], None]
    """Called with pages that left without a request: evicted, corrupt or unreadable ones."""

    @property
    def facts(self) -> StoreFacts:
        """Properties that never change."""
        ...

    @property
    def state(self) -> StoreState:
        """The state now; FAILED is an alarm."""
        ...

    @property
    def is_empty(self) -> bool:
        """True if each lookup is a miss now. A shared store answers False. Takes no time."""
        ...

    @property
    def reading_bytes(self) -> int:
        """Bytes being read, for which a new read would wait."""
        ...

    @property
    def reading_room(self) -> int:
        """Bytes that may be read in addition; larger reads are misses."""
        ...

    @property
    def writing_room(self) -> int:
        """Bytes that may be queued in addition; larger writes are refused."""
        ...

    def look(self, keys: Iterable[PageKey], deadline: float) -> int:
        """Returns how many pages of a path a read would probably find, up to the first miss.

        Takes keys only as far as it needs them, since the caller computes digests on demand. Waits
        until ``deadline`` at most, and then returns the pages that were found by then.
        """
        ...

    def there(self, keys: Sequence[PageKey]) -> Sequence[Presence]:
        """Returns the presence of each page, for the thread that writes pages. May wait.

        It counts as a use of the pages: a store that lets pages expire keeps them for longer.
        """
        ...

    def write(self, page: PageWrite, content: Content, done: Done, *, checksum: int | None) -> bool:
        """Begins to write a page. Returns whether it was accepted. Does not wait.

        An accepted write calls ``done`` once: with True once the page is stored for good, with
        False if it is not. ``content`` must not change until then, and is not read after it.
        ``checksum`` is the page's xxh3-64 if the caller knows it, and not 0. A page that differs
        from it is never served. A page that is STORED or PENDING, or that does not fit into the
        queue, is refused.
        """
        ...

    def read(
        self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None], deadline: float
    ) -> None:
        """Reads pages into the caller's memory. Calls ``done`` once. Does not wait.

        The pages belong to one path, in its order. One that is absent, corrupt, of another size, or
        not there by ``deadline`` is a miss. ``done`` is called soon after ``deadline`` at the
        latest, unless a call of the system that writes into the memory cannot be ended.

        No byte of any ``into`` changes after ``done`` was called, since the memory is somebody
        else's by then. A store that cannot end a transfer uses memory of its own for it.
        """
        ...

    def remove(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes pages and all pages after them, perhaps with more of their namespaces.

        No ``look`` or ``read`` that begins after the return finds them, and no write that was
        accepted before stores them. Calls ``done`` once: with True once they cannot return, with
        False if they may. An absent page counts as removed. May be answered late.
        """
        ...

    def remove_namespace(self, namespace: bytes, done: Done) -> None:
        """Removes every page of a namespace, by its digest, as ``remove`` does.

        Nobody may write pages of the namespace meanwhile.
        """
        ...

    def use(self) -> StoreUse:
        """Returns the current content, as one snapshot."""
        ...

    def close(self) -> None:
        """Finishes or drops all work, calls its callbacks, and ends its threads. Idempotent."""
        ...


@runtime_checkable
class SharedPageStore(PageStore, Protocol):
    """A page store that other hosts use too, and that learns what they removed."""

    revised: Callable[[bytes], None]
    """Called with the digest of a namespace of which another host removed pages.

    The callee removes the namespace's pages elsewhere on this host, and may wait for a disk. A
    thread of the page store calls it, never within ``write`` or ``remove``. Until it is set, and
    has returned, no page of the namespace is found and no write of one is accepted. Only then may
    the page store remember over a restart that this host knows of the removal. It does not if the
    call raises.
    """
    in_use: Callable[[], Iterable[bytes]]
    """Returns the digests of the namespaces that have pages on this host.

    The page store asks in these for removals by other hosts about once a minute, as nobody looks
    there for pages that are in memory. A thread of the page store calls it.
    """

    def remove_corrupt(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes pages that changed in this host's memory, and what is known to come after them.

        Calls ``done`` once, as ``remove`` does. One host with bad memory must not empty the page
        store of all: what is not known to come after them may stay for minutes.
        """
        ...


@runtime_checkable
class ExpiringPageStore(PageStore, Protocol):
    """A page store whose pages expire, or are deleted by somebody else, unless they are used."""

    @property
    def refresh_seconds(self) -> float:
        """Seconds after which a page that has to stay is asked for again by ``there``.

        So short that the store extends its life in time, also if a call is late.
        """
        ...


def size_of(content: Content) -> int:
    """Returns a page's size in bytes."""
    return sum(each.nbytes for each in content)


def checksum_of(content: Content) -> int:
    """Returns xxh3-64 of a page's bytes; other threads run meanwhile."""
    digest = xxh3_64()
    for each in content:
        digest.update(each)
    return digest.intdigest()
