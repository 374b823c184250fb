"""The machine's pool of large pages, for tests that need some of it."""

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvstore.storage.host.hugepages import HUGEPAGE_BYTES, available_bytes

POOL = Path("/proc/sys/vm/nr_hugepages")
# Tests in several processes change the pool one after the other.
MUTEX = Path(tempfile.gettempdir()) / "kvstore-test-hugepages"


@contextmanager
def hugepages_reserved(page_count: int) -> Iterator[bool]:
    """Provides a pool with ``page_count`` unreserved pages; False if the machine cannot have it.

    Needs root if the pool has fewer. The pool is as before at the end.
    """
    with MUTEX.open("a") as mutex:
        fcntl.flock(mutex, fcntl.LOCK_EX)
        wanted = page_count * HUGEPAGE_BYTES
        before: str | None = None
        try:
            if available_bytes() < wanted:
                before = _reserve(page_count)
            yield available_bytes() >= wanted
        finally:
            if before is not None:
                POOL.write_text(before, encoding="ascii")


def _reserve(page_count: int) -> str | None:
    try:
        before = POOL.read_text(encoding="ascii")
        POOL.write_text(str(int(before) + page_count), encoding="ascii")
    except OSError:
        return None
    return before
