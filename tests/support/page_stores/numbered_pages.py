"""Pages whose keys and bytes follow from their numbers, and calls of a page store that wait."""

import mmap
from collections.abc import Callable
from concurrent.futures import Future
from hashlib import blake2b
from math import inf
from random import Random

from kvstore.storage.page_store import PageKey, PageRead, PageStore, PageWrite, ReadAnswer

# O_DIRECT needs memory at multiples of so many bytes.
ALIGNMENT = 4096
PAGE_BYTES = 8192
LIMIT = 60.0
NAMESPACE = blake2b(b"a namespace", digest_size=32).digest()


def key(number: int, namespace: bytes = NAMESPACE) -> PageKey:
    """Returns the key of page ``number``."""
    return PageKey(namespace, blake2b(b"page %d" % number, digest_size=32).digest())


def page_bytes(number: int, size: int = PAGE_BYTES) -> bytes:
    """Returns the bytes of page ``number``."""
    return Random(number).randbytes(size)


def memory(size: int) -> memoryview:
    """Returns zeroed memory that O_DIRECT can take."""
    return memoryview(mmap.mmap(-1, max(-(-size // ALIGNMENT), 1) * ALIGNMENT))[:size]


class NumberedPages:
    """Writes, reads and removes numbered pages in the page store that ``store`` returns."""

    def __init__(self, store: Callable[[], PageStore]) -> None:
        self._store = store

    def begin(
        self,
        number: int,
        parent: int | None = None,
        *,
        size: int = PAGE_BYTES,
        namespace: bytes = NAMESPACE,
        checksum: int | None = None,
        ranks: int = 1,
    ) -> "Future[bool] | None":
        """Begins to write page ``number`` after ``parent``. Returns None if it was refused.

        The page's memory is filled with zeros right before the result is known.
        """
        done: Future[bool] = Future()
        above = namespace if parent is None else key(parent, namespace).digest
        page = PageWrite(key(number, namespace), above, number + 1)
        whole = memory(size)
        whole[:] = page_bytes(number, size)
        part = size // ranks
        content = [whole[each * part : (each + 1) * part] for each in range(ranks)]

        def end(written: bool) -> None:  # noqa: FBT001 - as the page store tells
            whole[:] = bytes(size)
            done.set_result(written)

        taken = self._store().write(page, content, end, checksum=checksum)
        return done if taken else None

    def write(self, *numbers: int, **how: object) -> bool:
        """Writes pages, each after the one before. Returns whether all are stored for good."""
        begun = [
            self.begin(number, parent, **how)  # type: ignore[arg-type]
            for number, parent in zip(numbers, [None, *numbers], strict=False)
        ]
        return all(each is not None and each.result(LIMIT) for each in begun)

    def begin_read(
        self,
        *numbers: int,
        size: int = PAGE_BYTES,
        namespace: bytes = NAMESPACE,
        deadline: float = inf,
    ) -> "tuple[Future[ReadAnswer], list[memoryview]]":
        """Begins to read pages. Returns the coming answer, and the memory of each."""
        done: Future[ReadAnswer] = Future()
        into = [memory(size) for _ in numbers]
        wanted = [
            PageRead(key(number, namespace), [each])
            for number, each in zip(numbers, into, strict=True)
        ]
        self._store().read(wanted, done.set_result, deadline)
        return done, into

    def answer(self, *numbers: int, **how: object) -> tuple[ReadAnswer, list[memoryview]]:
        """Reads pages. Returns the answer, and the memory of each."""
        done, into = self.begin_read(*numbers, **how)  # type: ignore[arg-type]
        return done.result(LIMIT), into

    def found(self, *numbers: int, **how: object) -> list[int]:
        """Reads pages. Returns the numbers of those that were served with the right bytes."""
        answer, into = self.answer(*numbers, **how)
        for number, each, data in zip(numbers, answer.found, into, strict=True):
            assert not each or bytes(data) == page_bytes(number, len(data)), number
        return [number for number, each in zip(numbers, answer.found, strict=True) if each]

    def remove(self, *numbers: int) -> bool:
        """Removes pages. Returns whether they are gone for good."""
        done: Future[bool] = Future()
        self._store().remove([key(each) for each in numbers], done.set_result)
        return done.result(LIMIT)

    def remove_namespace(self, namespace: bytes = NAMESPACE) -> bool:
        """Removes a namespace. Returns whether it is gone for good."""
        done: Future[bool] = Future()
        self._store().remove_namespace(namespace, done.set_result)
        return done.result(LIMIT)
