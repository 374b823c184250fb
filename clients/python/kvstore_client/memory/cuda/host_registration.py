"""Host memory of the store, registered with a CUDA device so that it copies at full speed."""

import logging
import math
import mmap
import os
from collections.abc import Callable
from functools import cache, partial

from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda.cuda_driver import CudaDriver
from kvstore_client.memory.cuda.mapped_memory import DeviceThread

_logger = logging.getLogger(__name__)

# The limit that vLLM 0.32 sets (v1/kv_offload/cpu/gpu_worker.py). One registration beyond 512 GiB
# fails on drivers since R580.
PIECE_BYTES = 64 << 30


def slots_per_piece(slot_bytes: int) -> int:
    """Returns the number of slots in each registered piece of an extent, but the last.

    A piece ends between slots and between the kernel's pages: CUDA refuses a copy that spans two
    registrations.
    """
    unit = math.lcm(slot_bytes, mmap.PAGESIZE)
    return max(PIECE_BYTES // unit, 1) * unit // slot_bytes


class HostRegistrar:
    """Registers mapped memory with one device, and unregisters it before it is unmapped.

    One thread calls the driver. It breaks no capture of a CUDA graph by another thread. ``load``
    returns the driver at the first use. Any thread may use this class.
    """

    def __init__(self, device: int, load: Callable[[], CudaDriver] = CudaDriver) -> None:
        self._device = device
        self._load = load
        self._thread = DeviceThread()
        self._driver: CudaDriver | None = None
        self._refused = False

    def register(
        self, address: int, size_bytes: int, slot_bytes: int
    ) -> Callable[[Callable[[], None]], None]:
        """Registers slots that begin at ``address``; returns a function that undoes it.

        That function MUST be called in place of unmapping the memory. It never waits: the thread
        unregisters the memory later, and then calls the argument, which unmaps it. If the device
        refuses, the memory stays pageable, which the driver copies slower. That is logged once.
        """
        registered = self._thread.run(partial(self._register, address, size_bytes, slot_bytes))
        return partial(self._undo, registered)

    def _register(self, address: int, size_bytes: int, slot_bytes: int) -> list[int]:
        """Registers all pieces or none; returns the addresses of the registered ones."""
        step = slots_per_piece(slot_bytes) * slot_bytes
        registered: list[int] = []
        try:
            driver = self._driver = self._driver or self._begin()
            for begin in range(0, size_bytes, step):
                driver.register(address + begin, min(step, size_bytes - begin))
                registered.append(address + begin)
        except DeviceUnavailable as error:
            if not self._refused:
                self._refused = True
                _logger.warning("host_memory_not_registered", extra={"reason": str(error)})
            self._unregister(registered)
            return []
        return registered

    def _begin(self) -> CudaDriver:
        driver = self._load()
        driver.relax_capture()
        driver.use(self._device)
        if not driver.uses_host_addresses(self._device):
            raise DeviceUnavailable("the device has addresses of its own for registered memory")
        return driver

    def _undo(self, registered: list[int], unmap: Callable[[], None]) -> None:
        def undo() -> None:
            self._unregister(registered)
            unmap()

        self._thread.post(undo)

    def _unregister(self, addresses: list[int]) -> None:
        for address in addresses:
            assert self._driver is not None
            try:
                self._driver.unregister(address)
            except DeviceUnavailable as error:
                _logger.warning("host_memory_still_registered", extra={"reason": str(error)})


@cache
def host_registrar(device: int) -> HostRegistrar:
    """Returns this process's registrar of a device."""
    return HostRegistrar(device)


# A forked child has none of the registered memory, nor the thread.
os.register_at_fork(after_in_child=host_registrar.cache_clear)
