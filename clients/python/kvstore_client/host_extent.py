"""An extent of host memory: a sealed memfd, mapped."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kvstore.v1 import types_pb2
from kvstore_client.extents import MappedExtent, UntrustedExtent
from kvstore_client.shared_memory import UntrustedMemory, check_memory, map_memory, populate

if TYPE_CHECKING:
    import torch

# Prepared at once: about a millisecond, for which others that map or unmap wait.
POPULATED_BYTES = 4 << 20


class HostExtent(MappedExtent):
    """Memory of this machine.

    Maps a memfd's ``descriptor``, which stays the caller's to close: nothing
    here keeps it. Once it is unmapped, ``unmapped`` is called with the extent's
    id, once, on the thread that dropped the last view, which may be in the
    middle of anything: it MUST NOT wait.

    Raises :class:`UntrustedExtent` where seals or sizes are not as they should
    be, ``OSError`` where the memory cannot be mapped.
    """

    device = None

    def __init__(
        self,
        extent: types_pb2.Extent,
        descriptor: int,
        unmapped: Callable[[int], None] | None = None,
    ) -> None:
        size = extent.host.size_bytes
        super().__init__(extent, size)
        try:
            check_memory(descriptor, size)
        except UntrustedMemory as error:
            msg = f"extent {extent.extent_id}: {error}"
            raise UntrustedExtent(msg) from error
        told = partial(unmapped, self.extent_id) if unmapped else None
        self._memory = map_memory(descriptor, size, unmapped=told)

    def view(self) -> memoryview:
        """Return all slots as bytes: slot i begins at ``i * slot_bytes``."""
        return self._memory[self._slots]

    def content(self, index: int) -> memoryview:
        """Return one slot's bytes, in place; raises ``IndexError``."""
        return self.slot(index)

    def wait_for_device(self) -> None:
        """Do nothing: no device works on this memory but through copies of its user's."""

    def populate(self, begin: int) -> int | None:
        """Fill this process's page tables for the next few MiB: see :func:`populate`."""
        slots = self.view()
        end = min(begin + POPULATED_BYTES, len(slots))
        return end if populate(slots[begin:end]) and end < len(slots) else None

    def _bytes(self) -> "torch.Tensor":
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        return torch.frombuffer(self.view(), dtype=torch.uint8)
