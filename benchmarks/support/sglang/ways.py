"""The ways for two SGLang servers of a host to share a prefix."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kvstore_client.testing import running_store
from support.sglang.store_flags import (
    HICACHE,
    HICACHE_ARGUMENTS,
    HICACHE_ENVIRONMENT,
    LINKER,
    hicache_arguments,
    import_path,
    linker_arguments,
)

ALONE, FILES = "SGLang alone", "HiCache, files"
MEMORY: Final = Path("/dev/shm")  # noqa: S108  # tmpfs is what is measured
STORE: Final = ("--tier1-bytes", "2GiB", "--extent-bytes", "256MiB")


@dataclass(frozen=True)
class Way:
    """A way as servers get it: flags and variables. ``shares`` says whether it has hits at all."""

    name: str
    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)
    shares: bool = True


@contextmanager
def _alone() -> Iterator[Way]:
    """Yields SGLang with its own tree alone."""
    yield Way(ALONE, shares=False)


@contextmanager
def _linker() -> Iterator[Way]:
    """Yields the external linker, with a store."""
    with running_store(*STORE) as store:
        flags = linker_arguments({"runtime_dir": str(store.runtime_dir)})
        yield Way(LINKER, flags, import_path())


@contextmanager
def _hicache() -> Iterator[Way]:
    """Yields HiCache over a store."""
    with running_store(*STORE) as store:
        flags = hicache_arguments({"runtime_dir": str(store.runtime_dir)})
        yield Way(HICACHE, flags, import_path() | HICACHE_ENVIRONMENT)


@contextmanager
def _files() -> Iterator[Way]:
    """Yields HiCache over SGLang's own backend of files, which are in memory."""
    with tempfile.TemporaryDirectory(prefix="sglang-files-", dir=MEMORY) as folder:
        place = {"SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR": folder}
        flags = [*HICACHE_ARGUMENTS, "--hicache-storage-backend", "file"]
        yield Way(FILES, flags, HICACHE_ENVIRONMENT | place)


# In the order of the tables. A further way is one more line.
WAYS: Final[dict[str, Callable[[], AbstractContextManager[Way]]]] = {
    ALONE: _alone,
    LINKER: _linker,
    HICACHE: _hicache,
    FILES: _files,
}
