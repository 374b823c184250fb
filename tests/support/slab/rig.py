"""A small slab whose pages' bytes follow from their numbers, and calls that wait."""

import mmap
from collections.abc import Sequence
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from random import Random

from kvstore.storage.page_store import PageKey, PageRead, PageWrite, ReadAnswer
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.policy import SlabPolicy
from kvstore.storage.slab.slab import Slab, SlabConfig

PAGE_BYTES = 8192
SEGMENT_BYTES = 1 << 20
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


def config(path: Path, segments: int = 2, segment_bytes: int = SEGMENT_BYTES) -> SlabConfig:
    """Returns the settings of a slab with so many segments."""
    return SlabConfig(
        path, ALIGNMENT + segments * segment_bytes, segment_bytes=segment_bytes, thread_count=2
    )


class SlabRig:
    """A slab, and the keys of the pages that left it by themselves."""

    def __init__(self, settings: SlabConfig, policy: SlabPolicy | None = None) -> None:
        self.settings = settings
        self.lost: list[PageKey] = []
        self.slab = Slab(settings, policy, self.lost.extend)

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
        """Begins to write page ``number`` after ``parent``; None where it was not taken."""
        done: Future[bool] = Future()
        above = namespace if parent is None else key(parent, namespace).digest
        page = PageWrite(key(number, namespace), above, number + 1)
        whole = memory(size)
        whole[:] = page_bytes(number, size)
        part = size // ranks
        content = [whole[each * part : (each + 1) * part] for each in range(ranks)]
        taken = self.slab.write(page, content, done.set_result, checksum=checksum)
        return done if taken else None

    def write(self, *numbers: int, **how: object) -> bool:
        """Writes pages, each after the one before; returns whether all are there for good."""
        begun = [
            self.begin(number, parent, **how)  # type: ignore[arg-type]
            for number, parent in zip(numbers, [None, *numbers], strict=False)
        ]
        return all(each is not None and each.result(LIMIT) for each in begun)

    def answer(
        self, *numbers: int, size: int = PAGE_BYTES, namespace: bytes = NAMESPACE
    ) -> tuple[ReadAnswer, list[memoryview]]:
        """Reads pages; returns the answer, and the memory of each."""
        done: Future[ReadAnswer] = Future()
        into = [memory(size) for _ in numbers]
        wanted = [
            PageRead(key(number, namespace), [each])
            for number, each in zip(numbers, into, strict=True)
        ]
        self.slab.read(wanted, done.set_result)
        return done.result(LIMIT), into

    def found(self, *numbers: int, **how: object) -> list[int]:
        """Reads pages; returns which are there, after their bytes were compared."""
        answer, into = self.answer(*numbers, **how)  # type: ignore[arg-type]
        there = [number for number, each in zip(numbers, answer.found, strict=True) if each]
        for number, each, data in zip(numbers, answer.found, into, strict=True):
            assert not each or bytes(data) == page_bytes(number, len(data)), number
        return there

    def remove(self, *numbers: int) -> bool:
        """Removes pages; returns whether they are gone for good."""
        done: Future[bool] = Future()
        self.slab.remove([key(each) for each in numbers], done.set_result)
        return done.result(LIMIT)

    def reopen(self, policy: SlabPolicy | None = None) -> None:
        """Closes the slab, and open it again."""
        self.slab.close()
        self.slab = Slab(self.settings, policy, self.lost.extend)

    def slot_offset(self, number: int) -> int:
        """Returns where page ``number`` lies in the file."""
        tables = self.slab._tables
        slot = tables.index.find(key(number))
        assert slot is not None
        segment, index = tables.pool.at(slot)
        return segment.offset(index)

    def header_offset(self, number: int) -> int:
        """Returns where the header of page ``number`` lies in the file."""
        tables = self.slab._tables
        slot = tables.index.find(key(number))
        assert slot is not None
        segment, index = tables.pool.at(slot)
        return segment.table_offset + index * 128

    def flip(self, offsets: Sequence[int]) -> None:
        """Changes a byte at each offset of the file, behind the slab's back."""
        flip(self.settings.path, offsets)


def flip(path: Path, offsets: Sequence[int]) -> None:
    """Changes a byte at each offset of a file."""
    with path.open("r+b") as file:
        for offset in offsets:
            file.seek(offset)
            (byte,) = file.read(1)
            file.seek(offset)
            file.write(bytes([byte ^ 0xFF]))
