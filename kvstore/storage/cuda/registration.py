"""Host memory registered with a device, piece by piece, while the next piece is filled."""

import math
import mmap
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

import structlog

from kvstore.storage.errors import CudaFailed

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Registers memory with a device. Returns a function that undoes the registration, to be called
# before the memory is freed. Raises CudaFailed if the device refuses.
Register: TypeAlias = Callable[[memoryview], Callable[[], None]]

# Large enough that the cost of a call does not matter, and small enough that an extent of 4 GiB has
# several. One registration beyond 512 GiB fails on drivers since R580, on any machine.
PIECE_BYTES = 512 << 20


class Registration:
    """An extent's registration: all of its pieces, or none.

    Calls ``register`` on its own thread, for one piece at a time.
    """

    def __init__(self, register: Register) -> None:
        self._register = register
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvstore-registration")
        self._begun: list[Future[None]] = []
        self._undos: list[Callable[[], None]] = []
        self._refusal: CudaFailed | None = None
        self._size_bytes = 0

    def begin(self, piece: memoryview) -> None:
        """Registers one more piece, after those before it. Does not wait."""
        self._size_bytes += piece.nbytes
        self._begun.append(self._thread.submit(self._add, piece))

    def finish(self) -> None:
        """Waits for all pieces. If the device refused one, logs it, and no piece stays registered.

        The driver can also copy pages that are not registered: through its own memory, at a
        fraction of the speed.
        """
        for each in self._begun:
            each.result()
        self._thread.shutdown()
        self._conclude()

    def finish_later(self) -> None:
        """Returns at once, and does what ``finish`` does when all pieces are registered."""
        self._thread.submit(self._conclude)
        self._thread.shutdown(wait=False)

    def undo(self) -> None:
        """Unregisters every piece, the last one first. Waits for the one under way; idempotent."""
        self._thread.shutdown(cancel_futures=True)
        self._undo_all()

    def _conclude(self) -> None:
        if self._refusal is not None:
            why = str(self._refusal)
            log.warning("host_memory_not_registered", size_bytes=self._size_bytes, why=why)
            self._undo_all()

    def _undo_all(self) -> None:
        while self._undos:
            self._undos.pop()()

    def _add(self, piece: memoryview) -> None:
        # Released at the end, so that no reference here keeps the mapping.
        with piece:
            if self._refusal is None:
                try:
                    self._undos.append(self._register(piece))
                except CudaFailed as error:
                    self._refusal = error


def pieces(size_bytes: int, slot_bytes: int) -> list[int]:
    """Returns the sizes of the pieces that an extent is filled and registered in.

    A piece has about PIECE_BYTES, and ends between slots and between the kernel's pages: CUDA
    refuses a copy that spans two registrations. The last piece has the rest.
    """
    unit = math.lcm(slot_bytes, mmap.PAGESIZE)
    step = max(PIECE_BYTES // unit, 1) * unit
    return [min(step, size_bytes - start) for start in range(0, size_bytes, step)]
