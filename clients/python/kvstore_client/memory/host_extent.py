"""An extent of host memory."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kvstore.v1 import types_pb2
from kvstore_client.memory.address_range import AddressRange
from kvstore_client.memory.mapped_extent import MappedExtent, UntrustedExtent
from kvstore_client.memory.shared_memory import UntrustedMemory, check_memory, map_memory, populate

if TYPE_CHECKING:
    import torch

# The bytes of one preparation: about a millisecond, in which other threads cannot map or unmap.
POPULATED_BYTES = 4 << 20


class HostExtent(MappedExtent):
    """An extent of host memory.

    Maps a memfd's ``descriptor``, which the caller closes, into ``address_range`` if one is
    given, and otherwise anywhere. After the extent is unmapped, ``unmapped`` is called once with
    its id. The call is on the thread that dropped the last view, at any point of the program:
    it MUST NOT wait.

    Raises :class:`UntrustedExtent` for wrong seals or sizes, and ``OSError`` if the memory
    cannot be mapped.
    """

    device = None

    def __init__(
        self,
        extent: types_pb2.Extent,
        descriptor: int,
        unmapped: Callable[[int], None] | None = None,
        address_range: AddressRange | None = None,
    ) -> None:
        size = extent.host.size_bytes
        super().__init__(extent, size)
        try:
            check_memory(descriptor, size)
        except UntrustedMemory as error:
            raise UntrustedExtent(f"extent {extent.extent_id}: {error}") from error
        report = partial(unmapped, self.extent_id) if unmapped else None
        if address_range is None:
            self._memory = map_memory(descriptor, size, unmapped=report)
        else:
            self._memory = address_range.map(extent, descriptor, unmapped=report)

    def view(self) -> memoryview:
        """Returns all slots as bytes: slot i begins at ``i * slot_bytes``."""
        return self._memory[self._slots]

    def content(self, index: int) -> memoryview:
        """Returns one slot's bytes, in place; raises ``IndexError``."""
        return self.slot(index)

    def wait_for_device(self) -> None:
        """Does nothing: devices use this memory only by copies that the caller makes."""

    def populate(self, begin: int) -> int | None:
        """Fills this process's page tables for the next few MiB, see :func:`populate`."""
        slots = self.view()
        end = min(begin + POPULATED_BYTES, len(slots))
        return end if populate(slots[begin:end]) and end < len(slots) else None

    def _bytes(self) -> "torch.Tensor":
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        return torch.frombuffer(self.view(), dtype=torch.uint8)
