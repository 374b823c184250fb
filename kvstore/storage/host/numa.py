"""NUMA nodes: the node of a PCI device, and memory that prefers a node.

The system call is called by its number, so libnuma is not needed.
"""

import ctypes
import errno
import mmap
import os
import platform
from pathlib import Path

from kvstore.storage.host.machine_limits import read

# From linux/mempolicy.h. With a bound policy (MPOL_BIND) the kernel would kill a process once the
# node is full; with a preferred one it uses the other nodes for the rest.
MPOL_PREFERRED = 1
# mbind's number in the kernel's tables for 64-bit processes of these machines.
MBIND = {"x86_64": 237, "aarch64": 235}
# Length of the mask of nodes: the kernel's most nodes (CONFIG_NODES_SHIFT is at most 10).
MASK_WORDS = 16
WORD_BITS = 64

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.syscall.restype = ctypes.c_long


def nodes(root: Path = Path("/")) -> list[int]:
    """Returns the numbers of the nodes with memory; none if the kernel does not list them."""
    found: list[int] = []
    text = read(root / "sys/devices/system/node/has_memory").strip()
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def node_of_pci(bus_id: str, root: Path = Path("/")) -> int | None:
    """Returns the node that a PCI device is attached to; None if the kernel knows none.

    ``bus_id`` is as CUDA writes it, such as ``0000:3B:00.0``. The domain may have more
    digits than the four or more of sysfs.
    """
    domain, _, rest = bus_id.lower().partition(":")
    name = f"{int(domain, 16):04x}:{rest}"
    text = read(root / "sys/bus/pci/devices" / name / "numa_node").strip()
    # -1 if the firmware does not name the node.
    return int(text) if text.isdigit() else None


def prefer(address: int, size: int, node: int) -> None:
    """Prefers ``node`` for the pages of a shared mapping that are allocated from now on.

    Once the node is full, the kernel uses other nodes. The policy belongs to the file, so it holds
    for every process that maps it. ``address`` is that of a page. Raises ``OSError``: EINVAL for a
    node that the machine lacks, EPERM in a container without the capability SYS_NICE, ENOSYS
    without NUMA.
    """
    if platform.machine() not in MBIND:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    words = (ctypes.c_ulong * MASK_WORDS)()
    if node >= MASK_WORDS * WORD_BITS:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    words[node // WORD_BITS] = 1 << node % WORD_BITS
    refused = _LIBC.syscall(
        ctypes.c_long(MBIND[platform.machine()]),
        ctypes.c_void_p(address),
        ctypes.c_size_t(size),
        ctypes.c_ulong(MPOL_PREFERRED),
        words,
        # The kernel reads one bit less than it is given.
        ctypes.c_ulong(MASK_WORDS * WORD_BITS + 1),
        ctypes.c_uint(0),
    )
    if refused:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def try_node(node: int) -> None:
    """Prefers a node for one page of this process; raises ``OSError`` as ``prefer`` does."""
    page = mmap.mmap(-1, mmap.PAGESIZE)
    prefer(ctypes.addressof(ctypes.c_ubyte.from_buffer(page)), mmap.PAGESIZE, node)
