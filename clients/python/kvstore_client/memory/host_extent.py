"""An extent of host memory."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kvstore.v1 import types_pb2
from kvstore_client.memory.address_range import AddressRange
from kvstore_client.memory.mapped_extent import MappedExtent, UntrustedExtent
from kvstore_client.memory.shared_memory import (
    Unregister,
    UntrustedMemory,
    check_memory,
    identity_of,
    map_memory,
    populate,
)

if TYPE_CHECKING:
    import torch

# The bytes of one preparation: half a millisecond, in which other threads cannot map or unmap.
POPULATED_BYTES = 4 << 20

# Registers slots with a device, by their address, their bytes, and the bytes of a slot.
Register: TypeAlias = Callable[[int, int, int], Unregister]


class HostExtent(MappedExtent):
    """An extent of host memory.

    Maps a memfd's ``descriptor``, which the caller closes, into ``address_range`` if one is
    given, and otherwise anywhere. After the extent is unmapped, ``unmapped`` is called once with
    its id. The call is on the thread that dropped the last view, at any point of the program:
    it MUST NOT wait. With ``register`` a device can copy from the slots, and another thread
    unmaps them.

    Raises :class:`UntrustedExtent` for wrong seals or sizes, and ``OSError`` if the memory
    cannot be mapped.
    """

    device = None

    def __init__(
        self,
        extent: types_pb2.Extent,
        descriptor: int,
        unmapped: Callable[[int], None] | None = None,
        *,
        register: Register | None = None,
        address_range: AddressRange | None = None,
    ) -> None:
        size = extent.host.size_bytes
        super().__init__(extent, size)
        try:
            check_memory(descriptor, size)
        except UntrustedMemory as error:
            raise UntrustedExtent(f"extent {extent.extent_id}: {error}") from error
        self.identity = identity_of(descriptor)
        report = partial(unmapped, self.extent_id) if unmapped else None
        registered = partial(self._register, register) if register else None
        if address_range is None:
            self._memory = map_memory(descriptor, size, unmapped=report, register=registered)
        else:
            self._memory = address_range.map(
                extent, descriptor, unmapped=report, register=registered
            )
        # One byte a slot: whether :meth:`fill` was called for it.
        self._filled = bytearray(self.slot_count)

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

    def _register(self, register: Register, address: int) -> Unregister:
        begin, end = self._slots.start, self._slots.stop
        return register(address + begin, end - begin, self.slot_bytes)

    def fill(self, slots: Iterable[int], part: slice) -> None:
        """Fills this process's page tables for ``part`` of each slot, once; see :func:`populate`.

        Raises ``IndexError`` for a slot that does not exist.
        """
        view, (first, stop, _) = self.view(), part.indices(self.slot_bytes)
        begin = end = 0
        for slot in sorted(each for each in slots if not self._filled[each]):
            self._filled[slot] = True
            start = slot * self.slot_bytes + first
            if start != end or end - begin >= POPULATED_BYTES:
                populate(view[begin:end])
                begin = start
            end = slot * self.slot_bytes + stop
        populate(view[begin:end])

    def _bytes(self) -> "torch.Tensor":
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        return torch.frombuffer(self.view(), dtype=torch.uint8)
