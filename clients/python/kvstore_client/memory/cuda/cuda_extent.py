"""An extent of a CUDA device's memory, mapped by its IPC handle."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from kvstore.v1 import types_pb2
from kvstore_client.errors import NotHostMemory
from kvstore_client.memory.cuda.mapped_memory import CudaMemory, cuda_memory
from kvstore_client.memory.mapped_extent import MappedExtent, UntrustedExtent

if TYPE_CHECKING:
    import torch

HANDLE_BYTES = 64
UUID_BYTES = 16


class CudaExtent(MappedExtent):
    """An extent of a CUDA device's memory, which has tensors of torch and no bytes.

    ``store_epoch`` is the epoch of the store that announced it. After the extent is unmapped,
    ``unmapped`` is called once with its id, on the thread that calls CUDA: it MUST NOT wait.

    Raises :class:`UntrustedExtent` for wrong sizes, and as :meth:`CudaMemory.map` does if this
    process cannot map the memory.
    """

    def __init__(
        self,
        extent: types_pb2.Extent,
        store_epoch: int,
        unmapped: Callable[[int], None] | None = None,
        memory: CudaMemory | None = None,
        wait: Callable[[], None] | None = None,
    ) -> None:
        """Uses ``memory``, by default this process's; ``wait`` is that of ``memory.map``."""
        described = extent.cuda_ipc
        super().__init__(extent, described.size_bytes)
        if (len(described.ipc_handle), len(described.device_uuid)) != (HANDLE_BYTES, UUID_BYTES):
            raise UntrustedExtent(
                f"extent {extent.extent_id} has no handle of CUDA's, or no device's UUID"
            )
        self._memory = memory or cuda_memory()
        self._mapping = self._memory.map(
            described, store_epoch, partial(unmapped, self.extent_id) if unmapped else None, wait
        )

    @property
    def device(self) -> int:
        """The memory's CUDA device, by this process's numbering."""
        return self._mapping.device

    def view(self) -> NoReturn:
        """Raises :class:`~kvstore_client.errors.NotHostMemory`."""
        raise NotHostMemory(
            f"extent {self.extent_id} is in the memory of cuda:{self.device}, which has no bytes "
            "for the host: use extent_tensor() or page_tensor()"
        )

    def content(self, index: int) -> memoryview:
        """Returns a copy of one slot's bytes. Raises ``IndexError`` and torch's errors."""
        if not 0 <= index < self.slot_count:
            raise IndexError(index)
        slot = self._bytes()[index * self.slot_bytes : (index + 1) * self.slot_bytes]
        copy: memoryview = slot.cpu().numpy().data
        return copy

    def wait_for_device(self) -> None:
        """Waits until all work of this process on the memory's device is done."""
        self._memory.synchronize(self.device)

    def _bytes(self) -> "torch.Tensor":
        return self._mapping.whole[self._slots]
