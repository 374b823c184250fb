"""Device memory that is allocated before it is needed, so that no other program gets it."""

import structlog

from kvstore.storage.cuda.cupy_runtime import CupyRuntime
from kvstore.storage.errors import CudaFailed

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class DeviceReserve:
    """The part of a budget that no extent uses yet, as allocations of the device.

    An extent must be its own allocation: its IPC handle gives a process the whole allocation, for
    as long as the allocation exists. So the reserve frees memory that was ever exported, and never
    reuses it.

    The reserve hands out a piece that has exactly the requested size. Otherwise it frees pieces,
    allocates the extent in their place, and reserves the rest again. Between the two calls another
    process can take the memory. The reserve then refuses the extent, and allocates again as much as
    the device has left. It frees nothing for an extent that does not fit.

    Not thread-safe: used on the thread that calls CUDA. All sizes are multiples of ``granularity``.
    """

    def __init__(
        self, runtime: CupyRuntime, budget_bytes: int, piece_bytes: int, granularity: int
    ) -> None:
        """Allocates the budget in pieces. Raises :class:`CudaFailed` with nothing allocated."""
        self._runtime = runtime
        self._granularity = granularity
        self._pieces: list[tuple[int, int]] = []
        # Bytes of the budget that are neither in a piece nor in an extent.
        self._missing_bytes = budget_bytes
        self._logged_bytes = 0
        try:
            while self._missing_bytes:
                self._allocate(min(piece_bytes, self._missing_bytes))
        except CudaFailed:
            self.close()
            raise

    @property
    def size_bytes(self) -> int:
        """Allocated bytes that no extent uses."""
        return sum(size for _, size in self._pieces)

    def take(self, size_bytes: int) -> int:
        """Returns the address of an allocation of that size. Raises :class:`CudaFailed`."""
        for number, (address, size) in enumerate(self._pieces):
            if size == size_bytes:
                del self._pieces[number]
                return address
        try:
            self._require(size_bytes)
            freed = 0
            # The latest first: they are the rest of earlier extents.
            while self._pieces and freed < size_bytes:
                freed += self._free()
            address = self._runtime.allocate(size_bytes)
            self._missing_bytes = max(self._missing_bytes - size_bytes, 0)
            return address
        finally:
            self._fill_up()

    def give_back(self, address: int, size_bytes: int) -> None:
        """Frees an extent and reserves its bytes. Raises :class:`CudaFailed` if it is not freed."""
        self._runtime.give_back(address)
        self._missing_bytes += size_bytes
        self._fill_up()

    def close(self) -> None:
        """Frees all pieces. A piece that the device does not free stays until the process ends."""
        try:
            while self._pieces:
                self._free()
        except CudaFailed as error:
            log.warning("device_reserve_kept", size_bytes=self.size_bytes, why=str(error))

    def _require(self, size_bytes: int) -> None:
        """Raises :class:`CudaFailed` if the reserve and the rest of the device have less."""
        left = self.size_bytes + self._runtime.room().available_bytes
        if left < size_bytes:
            raise CudaFailed(f"{left} bytes are left for it")

    def _allocate(self, size_bytes: int) -> None:
        address = self._runtime.allocate(size_bytes)
        self._pieces.append((address, size_bytes))
        self._missing_bytes -= size_bytes

    def _free(self) -> int:
        """Frees the latest piece and returns its size. It stays a piece if that fails."""
        address, size = self._pieces[-1]
        self._runtime.give_back(address)
        del self._pieces[-1]
        self._missing_bytes += size
        return size

    def _fill_up(self) -> None:
        """Reserves the missing bytes, or as many of them as the device has, by halves.

        Logs a shortage if it differs from the last one.
        """
        why, size = "", self._missing_bytes
        while size:
            try:
                self._allocate(size)
            except CudaFailed as error:
                why = str(error)
                size = size // 2 // self._granularity * self._granularity
            size = min(size, self._missing_bytes)
        if self._missing_bytes not in (0, self._logged_bytes):
            log.warning("device_reserve_short", missing_bytes=self._missing_bytes, why=why)
        self._logged_bytes = self._missing_bytes
