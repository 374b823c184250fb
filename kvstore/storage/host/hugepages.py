"""The kernel's large pages for host memory: reserved ones of 2 MiB, or transparent ones.

All functions read only files below ``root``.
"""

import os
from enum import StrEnum
from pathlib import Path

from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.host.machine_limits import read

HUGEPAGE_BYTES = 2 << 20
POOL = "sys/kernel/mm/hugepages/hugepages-2048kB"
SHMEM_ENABLED = "sys/kernel/mm/transparent_hugepage/shmem_enabled"
# MADV_HUGEPAGE on a memfd has an effect with these.
EFFECTIVE = ("[always]", "[within_size]", "[advise]", "[force]")
# MFD_HUGE_2MB of linux/memfd.h: log2 of 2 MiB, 21, shifted by MFD_HUGE_SHIFT.
MFD_HUGE_2MB = 21 << 26


class Hugepages(StrEnum):
    """The kind of pages of host memory. RESERVED is the kernel's pool of ``vm.nr_hugepages``."""

    OFF = "off"
    TRANSPARENT = "transparent"
    RESERVED = "2MiB"

    @property
    def memfd_flags(self) -> int:
        """Flags for ``memfd_create``."""
        return os.MFD_HUGETLB | MFD_HUGE_2MB if self is Hugepages.RESERVED else 0

    @property
    def granularity(self) -> int:
        """Bytes that a file's size has to be a multiple of."""
        return HUGEPAGE_BYTES if self is Hugepages.RESERVED else 1


def available_bytes(root: Path = Path("/")) -> int:
    """Returns the free bytes of the pool that are not set aside, and those it may overcommit."""
    pages = _count("free", root) - _count("resv", root)
    pages += max(_count("nr_overcommit", root) - _count("surplus", root), 0)
    return max(pages, 0) * HUGEPAGE_BYTES


def needed_pages(size_bytes: int, root: Path = Path("/")) -> int:
    """Returns the ``vm.nr_hugepages`` with which ``size_bytes`` more would be available."""
    missing = -(-(size_bytes - available_bytes(root)) // HUGEPAGE_BYTES)
    return _count("nr", root) + max(missing, 0)


def require(size_bytes: int, root: Path = Path("/")) -> None:
    """Raises :class:`NotEnoughMemory`, saying what to set, unless the pool has ``size_bytes``."""
    available = available_bytes(root)
    if size_bytes > available:
        raise NotEnoughMemory(
            f"not enough free pages of 2 MiB, set vm.nr_hugepages to at least "
            f"{needed_pages(size_bytes, root)}",
            requested_bytes=size_bytes,
            available_bytes=available,
        )


def transparent_allowed(root: Path = Path("/")) -> bool:
    """Returns whether the kernel uses transparent large pages for a memfd on request."""
    return any(each in EFFECTIVE for each in read(root / SHMEM_ENABLED).split())


def _count(name: str, root: Path) -> int:
    text = read(root / POOL / f"{name}_hugepages").strip()
    return int(text) if text.isdigit() else 0
