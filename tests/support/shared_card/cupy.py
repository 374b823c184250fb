"""A cupy for processes of a test: its one device is a folder of files that processes map.

``KVSTORE_TEST_CARD`` names the folder. As far as it is known, memory behaves as a device's does. A
handle reaches a whole allocation, and its own process cannot open it. Opens are counted, memory is
dirty, and it stays while any process maps it. A dead process lets go of its memory, a process that
touches unmapped memory dies, and a process may lose the device for good. Importing this also
replaces the driver's functions, torch's version and an engine's waits.
"""

import ctypes
import fcntl
import itertools
import mmap
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from device.lost_device import ILLEGAL, Losable, wait_on_card
from device.streams import Streams

FOLDER = Path(os.environ["KVSTORE_TEST_CARD"])
# What handles begin with: a process by its id, which in containers may be its successor's too.
PREFIX = os.environ.get("KVSTORE_TEST_CARD_PREFIX") or str(os.getpid())
TOTAL_BYTES = 64 << 20
# With a zero byte inside, as one device in sixteen has it.
UUID = bytes([7, 0, *range(1, 15)])
DIRT = 0xDD

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_LIBC.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)

_numbers = itertools.count(1)


class CUDARuntimeError(RuntimeError):
    """cupy's error of a call that CUDA refused, with CUDA's number of it."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class Mapped:
    """A file that is mapped; its descriptor holds a shared file lock until it is closed."""

    name: str
    descriptor: int
    address: int
    size: int
    count: int = 1


_mapped: dict[int, Mapped] = {}
_streams = Streams()
# Bytes of the host's memory that are registered, by their address.
_registered: dict[int, int] = {}


class Runtime:
    """``cupy.cuda.runtime``."""

    CUDARuntimeError = CUDARuntimeError

    def getDeviceCount(self) -> int:  # noqa: N802  # cupy's names
        """Counts the one device, unless it is hidden."""
        return 0 if os.environ.get("CUDA_VISIBLE_DEVICES") == "" else 1

    def setDevice(self, device: int) -> None:  # noqa: N802
        """Selects the one device."""
        _check(device < self.getDeviceCount(), "cudaErrorInvalidDevice")

    def deviceSynchronize(self) -> None:  # noqa: N802
        """Waits for nothing: every write here is done when it returns."""

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        """Returns what is left, and all."""
        return TOTAL_BYTES - sum(_sizes_in_use()), TOTAL_BYTES

    def malloc(self, size: int) -> int:
        """Allocates dirty memory."""
        _check(size <= self.memGetInfo()[0], "cudaErrorMemoryAllocation: out of memory")
        name = f"{PREFIX}-{next(_numbers)}"
        # A mapping of a file of this name stays what it was.
        (FOLDER / name).unlink(missing_ok=True)
        (FOLDER / name).write_bytes(bytes([DIRT]) * size)
        return _map(name)

    def memset(self, pointer: int, value: int, size: int) -> None:
        """Fills memory."""
        ctypes.memset(pointer, value, size)

    def memsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        """Begins to fill memory."""
        _streams.begin_fill(pointer, value, size, stream)

    def streamCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        """Returns a stream, which does not block."""
        assert flags == 1
        return _streams.make_stream()

    def memcpyAsync(  # noqa: N802
        self, target: int, source: int, size: int, kind: int, stream: int
    ) -> None:
        """Begins to copy: the bytes move at a wait, and not before."""
        assert kind in (1, 2)
        _streams.begin_copy(target, source, size, stream)

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802
        """Does the work that was begun."""
        _streams.wait(stream)

    def eventCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        """Returns an event without a time, at which a waiting thread sleeps."""
        assert flags == 3
        return _streams.make_event()

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        """Records an event after the work that was begun on a stream."""
        _streams.record(event, stream)

    def eventSynchronize(self, event: int) -> None:  # noqa: N802
        """Does the work that was begun before an event."""
        _streams.wait_for(event)

    def eventDestroy(self, event: int) -> None:  # noqa: N802
        """Does nothing: an event uses no memory here."""

    def hostRegister(self, pointer: int, size: int, flags: int) -> None:  # noqa: N802
        """Remembers what is registered, once."""
        assert flags == 1
        _check(pointer not in _registered, "cudaErrorHostMemoryAlreadyRegistered")
        _registered[pointer] = size

    def hostUnregister(self, pointer: int) -> None:  # noqa: N802
        """Forgets it."""
        _check(pointer in _registered, "cudaErrorHostMemoryNotRegistered")
        del _registered[pointer]

    def free(self, pointer: int) -> None:
        """Gives back: what others map is undefined from here on, so it is spoilt."""
        ctypes.memset(pointer, DIRT, _mapped[pointer].size)
        _unmap(pointer)

    def ipcGetMemHandle(self, pointer: int) -> bytes:  # noqa: N802
        """Returns the name of the file."""
        return _mapped[pointer].name.encode().ljust(64, b"\0")

    def ipcOpenMemHandle(self, ipc_handle: bytes) -> int:  # noqa: N802
        """Map, or count once more what is mapped."""
        name = ipc_handle.rstrip(b"\0").decode()
        if name.startswith(f"{os.getpid()}-"):
            raise CUDARuntimeError("cudaErrorDeviceUninitialized: invalid device context", 201)
        for each in _mapped.values():
            if each.name == name:
                each.count += 1
                return each.address
        return _map(name)

    def ipcCloseMemHandle(self, pointer: int) -> None:  # noqa: N802
        """Unmaps, once it was closed as often as opened."""
        _check(pointer in _mapped, "cudaErrorInvalidValue")
        _mapped[pointer].count -= 1
        if _mapped[pointer].count == 0:
            _unmap(pointer)


class Device:
    """A device, to be selected for a while or waited for."""

    def __init__(self, number: int) -> None:
        assert number == 0

    def synchronize(self) -> None:
        """Waits for nothing."""
        cuda.runtime.deviceSynchronize()

    def __enter__(self) -> None:
        """Select."""

    def __exit__(self, *_: object) -> None:
        """Selects what was selected before."""


class UnownedMemory(NamedTuple):
    """Memory by address, and who keeps it."""

    ptr: int
    size: int
    owner: object
    device_id: int


class MemoryPointer(NamedTuple):
    """A place in memory."""

    mem: UnownedMemory
    offset: int


def ndarray(shape: tuple[int], dtype: type, pointer: MemoryPointer) -> Any:  # noqa: ANN401
    """Returns an array on memory, which keeps the memory's owner."""
    piece = (ctypes.c_ubyte * pointer.mem.size).from_address(pointer.mem.ptr)
    piece.owner = pointer.mem.owner  # type: ignore[attr-defined]
    return np.ndarray(shape, dtype, buffer=piece)


uint8 = np.uint8
cuda = SimpleNamespace(
    runtime=Losable(Runtime(), CUDARuntimeError(f"cudaErrorIllegalAddress: {ILLEGAL}", 700)),
    Device=Device,
    UnownedMemory=UnownedMemory,
    MemoryPointer=MemoryPointer,
)


def _check(fine: object, message: str) -> None:
    if not fine:
        raise CUDARuntimeError(message)


def _map(name: str) -> int:
    try:
        descriptor = os.open(FOLDER / name, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        raise CUDARuntimeError("cudaErrorInvalidResourceHandle") from None
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    size = os.fstat(descriptor).st_size
    protection = mmap.PROT_READ | mmap.PROT_WRITE
    address = _LIBC.mmap(None, size, protection, mmap.MAP_SHARED, descriptor, 0)
    assert address not in (None, ctypes.c_void_p(-1).value)
    _mapped[address] = Mapped(name, descriptor, address, size)
    return int(address)


def _unmap(pointer: int) -> None:
    mapped = _mapped.pop(pointer)
    _LIBC.munmap(mapped.address, mapped.size)
    os.close(mapped.descriptor)


def _sizes_in_use() -> list[int]:
    """Returns the sizes of what somebody maps; what nobody maps any more is gone."""
    sizes = []
    for path in FOLDER.iterdir():
        with suppress(FileNotFoundError), path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                sizes.append(path.stat().st_size)
            else:
                path.unlink(missing_ok=True)
    return sizes


def _driver() -> SimpleNamespace:
    from device.card import Card  # noqa: PLC0415  # as above
    from device.client_driver import client_driver  # noqa: PLC0415  # of tests/support

    library = client_driver(Card(uuid=UUID))

    def init(flags: ctypes.c_uint) -> int:
        return 0 if Runtime().getDeviceCount() else 100 + flags.value

    def address_range(base: Any, size: Any, address: ctypes.c_ulonglong) -> int:  # noqa: ANN401
        for start, mapped in _mapped.items():
            if start <= address.value < start + mapped.size:
                base._obj.value, size._obj.value = start, mapped.size
                return 0
        return 1

    def batch(*arguments: Any) -> int:  # noqa: ANN401
        targets, sources, sizes, *_, stream = arguments
        for copy in zip(targets, sources, sizes, strict=True):
            _streams.begin_copy(*copy, stream.value)
        return 0

    fitting = {"cuInit": init, "cuMemGetAddressRange_v2": address_range}
    return SimpleNamespace(**{**vars(library), **fitting, "cuMemcpyBatchAsync_v2": batch})


for _module in ("kvstore.storage.cuda.cuda_driver", "kvstore_client.memory.cuda.cuda_driver"):
    if _module in sys.modules:
        sys.modules[_module]._load = _driver  # type: ignore[attr-defined]
if "torch" in sys.modules:
    sys.modules["torch"].version.cuda = "stand-in"  # type: ignore[attr-defined]
wait_on_card()
