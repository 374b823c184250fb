"""Closes the CUDA device files of a parent process in its forked child.

A fork inherits the descriptors of ``/dev/nvidia*`` and the mappings of these files; the driver does
not prevent it (nv-mmap.c of NVIDIA's open-gpu-kernel-modules). The driver ends a process's channels
at the last close of its files. While a child keeps one open, kernels that a killed parent queued
may continue, and write into slots that the store has since given to others.
"""

import ctypes
import mmap
import os
import re
from contextlib import suppress
from pathlib import Path

# The files of the devices, and those for control, unified memory and capabilities.
PREFIX = "/dev/nvidia"
# From linux/mman.h; the mmap of Python 3.11 has no names for them.
MAP_FIXED = 0x10
MAP_NORESERVE = 0x4000
MAP_FAILED = ctypes.c_void_p(-1).value
# A line of /proc/self/maps: a range, four words and a path, whose bytes may be in any encoding.
_LINE = re.compile(rb"([0-9a-f]+)-([0-9a-f]+) (?:\S+ +){4}(.*)")


def leave_device_files(prefix: str | None = None) -> None:
    """Replaces all descriptors and mappings of the device files with harmless ones.

    For a child that was just forked and cannot use CUDA. Descriptors become those of ``/dev/null``
    and mappings become zeros. CUDA's library still uses their numbers and addresses at the child's
    end; that then harms nothing. ``prefix`` is the beginning of the files' paths, by default
    ``PREFIX``.
    """
    prefix = prefix or PREFIX
    for descriptor in _descriptors(prefix):
        _close(descriptor)
    for start, size in _mappings(prefix):
        _replace(start, size)


def _descriptors(prefix: str) -> list[int]:
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the folder that is listed
            if str(link.readlink()).startswith(prefix):
                found.append(int(link.name))
    return found


def _close(descriptor: int) -> None:
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        os.dup2(null, descriptor, inheritable=False)
    finally:
        os.close(null)


def _mappings(prefix: str) -> list[tuple[int, int]]:
    found = []
    for line in Path("/proc/self/maps").read_bytes().split(b"\n"):
        match = _LINE.fullmatch(line)
        if match is not None and match[3].startswith(os.fsencode(prefix)):
            start, end = int(match[1], 16), int(match[2], 16)
            found.append((start, end - start))
    return found


def _replace(start: int, size: int) -> None:
    """Maps zeros over a range of addresses; they use no memory until they are written."""
    call = ctypes.CDLL(None).mmap
    call.restype = ctypes.c_void_p
    call.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED
    done = call(start, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
    assert done not in (None, MAP_FAILED)
