"""Pages of the slab's benchmark, all of which follow from their numbers."""

import mmap
from collections.abc import Callable
from hashlib import blake2b
from threading import Semaphore

from kvstore.core.values.page_hash import page_digest
from kvstore.storage.page_store import PageKey, PageWrite
from kvstore.storage.slab.slab import Slab

NAMESPACE = blake2b(b"a namespace of the benchmark", digest_size=32).digest()
# Pages of one sequence, each after the one before.
CHAIN = 16
PAGE_TOKENS = 16


def key_of(number: int) -> PageKey:
    """Returns the key of page ``number``."""
    return PageKey(NAMESPACE, page_digest(NAMESPACE, number.to_bytes(8, "little")))


def page_of(number: int) -> PageWrite:
    """Returns the slab's record of page ``number``."""
    parent = key_of(number - 1).digest if number % CHAIN else NAMESPACE
    return PageWrite(key_of(number), parent, PAGE_TOKENS)


def bytes_of(number: int, size: int) -> bytes:
    """Returns the bytes of page ``number``."""
    return blake2b(b"%d" % number, digest_size=64).digest() * (size // 64)


def memory(size: int) -> memoryview:
    """Returns memory for O_DIRECT, already allocated."""
    return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_POPULATE))


class Writer:
    """Writes pages as fast as the slab accepts them. Waits if its queue is full."""

    def __init__(self, slab: Slab, queue_pages: int) -> None:
        self._slab = slab
        self._room = Semaphore(queue_pages)
        self._queue_pages = queue_pages

    def write(self, page: PageWrite, content: memoryview, done: Callable[[bool], None]) -> None:
        """Begins to write a page. ``done`` is called with whether the page is durable."""
        self._room.acquire()

        def finish(committed: bool) -> None:  # noqa: FBT001 - the slab's signature
            self._room.release()
            done(committed)

        if not self._slab.write(page, [content], finish):
            finish(committed=False)

    def drain(self) -> None:
        """Waits until everything is written."""
        for _ in range(self._queue_pages):
            self._room.acquire()
        self._room.release(self._queue_pages)
