"""The operations of an actor on device 0: one allocation or mapping at a time."""

import ctypes
import os
import time
from pathlib import Path
from typing import Any, Final

from gpu_machine.probes.driver import READ_ONLY, READ_WRITE, Driver

MIB: Final = 1 << 20
# Bytes to read from each end of memory to compare it.
ENDS: Final = MIB
# cudaMemcpyDeviceToHost, cudaStreamNonBlocking.
TO_HOST: Final = 2
NON_BLOCKING: Final = 1
NOBODY: Final = 10_001
DEVICE_FILES: Final = "/dev/nvidia"


class Device:
    """Operations by name. Each raises the errors of cupy or of the driver.

    An address and a size are those of the memory that was last allocated, opened, created or taken
    in.
    """

    def __init__(self) -> None:
        self._address = self._size = self._stream = 0
        self._loaded: Driver | None = None

    @property
    def _driver(self) -> Driver:
        self._loaded = self._loaded or Driver()
        return self._loaded

    def become(self, uid: int = NOBODY) -> int:
        """Becomes another user, without any group; before ``start``."""
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        # A folder that this user can write to, unlike its home.
        os.environ["CUPY_CACHE_DIR"] = f"/tmp/cupy-{uid}"  # noqa: S108 - made by cupy, for its kernels
        os.environ["HOME"] = "/tmp"  # noqa: S108 - as above
        return os.getuid()

    def start(self) -> int:
        """Makes a context on device 0 and returns this process's id, as it sees itself."""
        import cupy  # noqa: PLC0415 - after `become`

        self._cuda: Any = cupy.cuda.runtime
        self._cuda.setDevice(0)
        self._cuda.deviceSynchronize()
        self._stream = self._cuda.streamCreateWithFlags(NON_BLOCKING)
        return os.getpid()

    def room(self) -> int:
        """Returns the bytes that the device has left, for all processes together."""
        return int(self._cuda.memGetInfo()[0])

    def allocate(self, size: int) -> str:
        """Allocates by ``cudaMalloc``; returns the handle for other processes, in hexadecimal."""
        self._address, self._size = self._cuda.malloc(size), size
        return bytes(self._cuda.ipcGetMemHandle(self._address)).hex()

    def open(self, handle: str, size: int) -> float:
        """Maps what another process allocated; returns the seconds."""
        begin = time.perf_counter()
        self._address = self._cuda.ipcOpenMemHandle(bytes.fromhex(handle))
        self._size = size
        return time.perf_counter() - begin

    def close(self) -> float:
        """Unmaps what was opened; returns the seconds."""
        begin = time.perf_counter()
        self._cuda.ipcCloseMemHandle(self._address)
        return time.perf_counter() - begin

    def fill(self, value: int) -> None:
        """Writes a byte everywhere."""
        self._cuda.memset(self._address, value, self._size)
        self._cuda.deviceSynchronize()

    def holds(self, value: int) -> bool:
        """Returns whether both ends of the memory hold a byte."""
        found = [self._read(0, ENDS), self._read(self._size - ENDS, ENDS)]
        return found == [bytes([value]) * ENDS] * 2

    def count(self, seconds: float, launches: int) -> None:
        """Queues kernels that count in the first word for some seconds each, and waits for none."""
        kernel = self._driver.counting_kernel()
        for _ in range(launches):
            self._driver.launch(kernel, self._address, int(seconds * 1e9), self._stream)

    def counted(self) -> int:
        """Returns the first word; reads it beside running kernels."""
        return int.from_bytes(self._read(0, 4), "little")

    def fork_sleeper(self, *, closes: bool) -> int:
        """Forks a child that sleeps and returns its id.

        The child calls nothing of CUDA. If ``closes``, it first closes the device's descriptors and
        unmaps the device's files. The driver ends channels at the last close of a file, and a
        mapping keeps a file open.
        """
        if (pid := os.fork()) != 0:
            return pid
        try:
            if closes:
                leave_device_files()
            time.sleep(120.0)
        finally:
            os._exit(0)

    def create(self, size: int) -> int:
        """Makes memory by ``cuMemCreate``, maps it and returns its descriptor."""
        number = self._driver.create(size)
        descriptor = self._driver.export(number)
        self._address, self._size = self._driver.map(number, size, READ_WRITE), size
        return descriptor

    def take_in(self, descriptor: int, size: int, *, writable: bool) -> float:
        """Maps the memory of another process's descriptor; returns the seconds."""
        begin = time.perf_counter()
        access = READ_WRITE if writable else READ_ONLY
        number = self._driver.take_in(descriptor)
        self._address, self._size = self._driver.map(number, size, access), size
        return time.perf_counter() - begin

    def unmap(self) -> None:
        """Unmaps the memory that was created or taken in."""
        self._driver.unmap(self._address, self._size)

    def granularity(self) -> int:
        """Returns the bytes that sizes for ``create`` are multiples of."""
        return self._driver.granularity()

    def write_by_kernel(self) -> None:
        """Writes the first word by a kernel and waits for it."""
        self.count(0.0, 1)
        self._cuda.streamSynchronize(self._stream)

    def _read(self, offset: int, size: int) -> bytes:
        import numpy as np  # noqa: PLC0415 - cupy brings it

        copy = np.empty(size, np.uint8)
        arguments = copy.ctypes.data, self._address + offset, size, TO_HOST, self._stream
        self._cuda.memcpyAsync(*arguments)
        self._cuda.streamSynchronize(self._stream)
        return copy.tobytes()


def leave_device_files() -> None:
    """Closes this process's descriptors of ``/dev/nvidia*`` and unmaps these files."""
    for each in Path("/proc/self/fd").iterdir():
        if os.path.realpath(each).startswith(DEVICE_FILES):
            os.close(int(each.name))
    unmap = ctypes.CDLL(None).munmap
    unmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        addresses, *_, path = line.split()
        if path.startswith(DEVICE_FILES):
            start, end = (int(each, 16) for each in addresses.split("-"))
            unmap(start, end - start)
