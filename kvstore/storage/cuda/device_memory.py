"""Memory of a CUDA device that workers map: an allocation and an IPC handle for each extent."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

import structlog

from kvstore.storage.cuda.cupy_runtime import CupyRuntime
from kvstore.storage.cuda.device_copier import CudaCopier
from kvstore.storage.cuda.device_reserve import DeviceReserve
from kvstore.storage.errors import (
    CudaFailed,
    DeviceUnavailable,
    ExtentUnusable,
    NotEnoughMemory,
)
from kvstore.storage.extent import CudaIpcExport, ExtentDescription, ExtentShape, SlotReader
from kvstore.storage.held_memory import HeldMemory
from kvstore.storage.slot_copies import DeviceBytes

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")

# The driver takes smaller allocations out of one of this size, which a handle would give whole.
GRANULARITY = 2 << 20


class SlotAccess(NamedTuple):
    """Reads, fills and locates a slot by index. Reads and fills run on the thread for CUDA."""

    read: Callable[[int], memoryview]
    fill: Callable[[int, int], None]
    place: Callable[[int], DeviceBytes]


class CudaExtent:
    """One extent of a device's memory, zero at first; exported as it was allocated."""

    def __init__(
        self,
        shape: ExtentShape,
        export: CudaIpcExport,
        offset: int,
        access: "SlotAccess",
        give_back: Callable[[], bool],
    ) -> None:
        self.shape = shape
        self._access: SlotAccess | None = access
        self._description = ExtentDescription(shape, offset, export)
        self._described = False
        self._give_back: Callable[[], bool] | None = give_back

    def describe(self) -> ExtentDescription:
        """Returns what another process needs to map the memory."""
        # A process may map it from here on.
        self._described = True
        return self._description

    def read(self, index: int) -> memoryview | None:
        """Returns a copy of a slot's bytes, or None once it is closed; raises ``CudaFailed``."""
        access = self._access
        return None if access is None else access.read(index)

    def reader(self) -> SlotReader:
        """Returns ``read``."""
        return self.read

    def place(self, index: int) -> DeviceBytes | None:
        """Returns a slot's place on the device, or None once the extent is closed."""
        access = self._access
        return None if access is None else access.place(index)

    def fill(self, index: int, value: int) -> None:
        """Writes one value into all bytes of a slot; raises ``CudaFailed``."""
        if self._access is not None:
            self._access.fill(index, value)

    def give_back(self) -> bool:
        """Frees memory that no process maps. Returns False if the device refuses. Once."""
        self._access = None
        give_back, self._give_back = self._give_back, None
        return give_back is not None and give_back()

    def close(self) -> None:
        """Gives the memory up. Idempotent.

        A described extent is left to the end of this process. Freeing memory that another
        process maps is undefined, and the driver keeps it until the last mapping ends.
        """
        if self._described:
            self._access = self._give_back = None
        self.give_back()


class CudaDevice:
    """One device's memory as a source of extents. Thread-safe.

    It calls CUDA on one thread with its own stream; ``copier`` calls it on other threads. The CUDA
    context exists once the constructor returns. Raises :class:`DeviceUnavailable` if cupy, the
    driver or the device is missing.
    """

    granularity = GRANULARITY

    def __init__(self, number: int, load: Callable[[], CupyRuntime] = CupyRuntime) -> None:
        """Selects the device, which takes up to a second; ``load`` makes the runtime."""
        self._number = number
        self._name = f"cuda:{number}"
        # An IPC handle ends with the process that exported it.
        self.held = HeldMemory()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvstore-cuda")
        try:
            self._runtime = self._run(load)
            self._uuid = self._run(lambda: self._runtime.select(number))
            self._stream = self._run(self._make_stream)
        except BaseException:
            self._thread.shutdown()
            raise
        self.copier = CudaCopier(number, self._runtime)
        self._reserve: DeviceReserve | None = None

    def require(self, budget_bytes: int, pause: Callable[[], bool]) -> None:
        """Waits until the device has that much left, checking again after each ``pause``.

        The workers of a store that ended keep its memory for a while. A pause that returns False
        is the last. Raises :class:`DeviceUnavailable` then, or at once if the whole device has
        less memory.
        """
        self._await(budget_bytes, pause, lambda: None)

    def reserve(self, budget_bytes: int, piece_bytes: int, pause: Callable[[], bool]) -> None:
        """Allocates the whole budget in pieces of that size, after waiting as ``require`` does.

        Later extents come from these pieces. Rounds the budget down and pieces up to
        ``granularity``.
        """
        whole, piece = budget_bytes // GRANULARITY * GRANULARITY, _rounded_up(piece_bytes)

        def fill() -> None:
            self._reserve = DeviceReserve(self._runtime, whole, piece, GRANULARITY)

        self._await(budget_bytes, pause, lambda: self._run(fill))

    def _await(
        self, budget_bytes: int, pause: Callable[[], bool], take: Callable[[], None]
    ) -> None:
        """Calls ``take`` once the device has room, until it does not raise ``CudaFailed``."""
        awaited, refusal = False, ""
        while True:
            try:
                room = self._run(self._runtime.room)
            except CudaFailed as error:
                raise DeviceUnavailable(f"{self._name} cannot be used: {error}") from error
            if budget_bytes <= room.available_bytes:
                try:
                    return take()
                except CudaFailed as error:
                    if not refusal:
                        log.warning("device_memory_refused", device=self._name, why=str(error))
                    refusal = f" ({error})"
            hopeless = budget_bytes > room.total_bytes
            if not (hopeless or awaited):
                log.warning("device_memory_awaited", device=self._name, **room._asdict())
                awaited = True
            if hopeless or not pause():
                raise DeviceUnavailable(
                    f"tier1_bytes is {budget_bytes}, and {self._name} has {room.available_bytes} "
                    f"bytes left of {room.total_bytes}{refusal}: "
                    "set less, or end what else uses the device"
                )

    def answers(self) -> bool:
        """Returns whether the device still works for this process; False after a permanent error.

        Waits for all work of this process on the device. After an illegal address or an ECC error
        every later call of CUDA fails, until the process ends.
        """
        try:
            self._run(self._runtime.synchronize)
        except CudaFailed as error:
            log.warning("device_does_not_answer", device=self._name, why=str(error))
            return False
        return True

    def allocate(self, shape: ExtentShape) -> CudaExtent:
        """Allocates, clears and exports an extent; raises :class:`NotEnoughMemory`."""
        return self._run(lambda: self._allocate(shape))

    def restore(self, shape: ExtentShape, descriptor: int) -> CudaExtent:  # noqa: ARG002  # as others
        """Raises :class:`ExtentUnusable`: memory of a device ends with its process."""
        raise ExtentUnusable(f"extent {shape.extent_id} was in the memory of {self._name}")

    def pci_bus_id(self) -> str:
        """Returns where the device is attached, such as ``0000:3B:00.0``; raises ``CudaFailed``."""
        return self._run(lambda: self._runtime.pci_bus_id(self._number))

    def close(self) -> None:
        """Frees the reserve and ends the threads. Idempotent.

        Extents not closed by then are left to the end of the process.
        """
        self.copier.close()
        reserve, self._reserve = self._reserve, None
        if reserve is not None:
            self._run(reserve.close)
        self._thread.shutdown()

    def _run(self, work: Callable[[], T]) -> T:
        return self._thread.submit(work).result()

    def _make_stream(self) -> int:
        try:
            return self._runtime.make_stream()
        except CudaFailed as error:
            raise DeviceUnavailable(f"{self._name} cannot be used: {error}") from error

    def _allocate(self, shape: ExtentShape) -> CudaExtent:
        size = _rounded_up(shape.size_bytes)
        take = self._runtime.allocate if self._reserve is None else self._reserve.take
        try:
            address = take(size)
        except CudaFailed as error:
            raise self._refusal(size, error) from error
        try:
            # A previous process, perhaps of another tenant, left its bytes in this memory.
            self._runtime.fill(address, size, 0, self._stream)
            exported = self._runtime.export(address)
        except CudaFailed as error:
            self._give_back(address, size)
            raise self._refusal(size, error) from error
        export = CudaIpcExport(exported.ipc_handle, self._uuid, exported.offset + size)
        return CudaExtent(
            shape,
            export,
            exported.offset,
            self._access_to(address, shape.slot_bytes),
            lambda: self._run(lambda: self._give_back(address, size)),
        )

    def _access_to(self, address: int, size: int) -> SlotAccess:
        runtime, stream = self._runtime, self._stream
        return SlotAccess(
            lambda index: self._run(lambda: runtime.read(address + index * size, size, stream)),
            lambda index, value: self._run(
                lambda: runtime.fill(address + index * size, size, value, stream)
            ),
            lambda index: DeviceBytes(self.copier, address + index * size),
        )

    def _give_back(self, address: int, size_bytes: int) -> bool:
        try:
            if self._reserve is None:
                self._runtime.give_back(address)
            else:
                self._reserve.give_back(address, size_bytes)
        except CudaFailed as error:
            log.warning("device_memory_kept", device=self._name, why=str(error))
            return False
        return True

    def _refusal(self, size_bytes: int, error: CudaFailed) -> NotEnoughMemory:
        try:
            available = self._runtime.room().available_bytes
        except CudaFailed:
            available = 0
        if self._reserve is not None:
            available += self._reserve.size_bytes
        return NotEnoughMemory(
            f"{self._name} refused the memory ({error})",
            requested_bytes=size_bytes,
            available_bytes=available,
        )


def _rounded_up(size_bytes: int) -> int:
    return -(-size_bytes // GRANULARITY) * GRANULARITY
