"""The pages of remote.py: their keys by number, and memory as an arena's."""

import mmap
import os
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise

from kvstore.core.values.page_hash import page_digest
from kvstore.core.values.segments import segment_start
from kvstore.storage.page_store import PageKey, PageWrite

PAGE_TOKENS = 16


@dataclass(frozen=True)
class PagePath:
    """One path of pages, each after the one before. Paths of other names share no page."""

    namespace: bytes
    keys: tuple[PageKey, ...]

    @property
    def writes(self) -> Iterator[PageWrite]:
        """Yields the pages as a store is given them."""
        parents = (self.namespace, *(each.digest for each in self.keys))
        for key, parent in zip(self.keys, parents, strict=False):
            yield PageWrite(key, parent, PAGE_TOKENS)


def page_path(name: str, count: int) -> PagePath:
    """Returns a path of ``count`` pages, whose digests follow from its name."""
    namespace = blake2b(b"the namespace of the benchmark", digest_size=32).digest()
    digests = [namespace]
    for number in range(count):
        digests.append(page_digest(digests[-1], f"{name} {number}".encode()))
    firsts = [digests[segment_start(number) + 1] for number in range(count)]
    keys = (
        PageKey(namespace, digest, first)
        for (_, digest), first in zip(pairwise(digests), firsts, strict=True)
    )
    return PagePath(namespace, tuple(keys))


class PageMemory:
    """Shared memory for some pages, as workers and the store map it. ``pages`` are views of it."""

    def __init__(self, count: int, page_bytes: int) -> None:
        region = memoryview(mmap.mmap(-1, count * page_bytes))
        self.pages = [region[at : at + page_bytes] for at in range(0, len(region), page_bytes)]

    def fill(self) -> None:
        """Writes random bytes."""
        for each in self.pages:
            each[:] = os.urandom(each.nbytes)

    def clear(self) -> None:
        """Writes zeros, so that later bytes must have been read."""
        for each in self.pages:
            each[:] = bytes(each.nbytes)
