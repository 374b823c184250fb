"""One extent of the store's memory, mapped into this process: host or device."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from xxhash import xxh3_64_intdigest

from kvstore.v1 import types_pb2
from kvstore_client.memory.shared_memory import MemoryIdentity
from kvstore_client.values.page_layout import PagedContent, PageLayout
from kvstore_client.values.page_runs import PageRef

if TYPE_CHECKING:
    import torch

# The checksum of a page whose bytes were not read.
NO_CHECKSUM = 0


class UntrustedExtent(Exception):
    """An extent's memory is not as announced, so this process must not use it."""


class MappedExtent(ABC):
    """The memory of one extent, readable and writable, shared with all processes that map it.

    The memory is unmapped after this object and its last view are dropped. A forked child
    has no such memory, and does not unmap. Any thread may use it.

    ``generations`` has the current generation of each slot, by the slot's index. It is None
    if the store does not share them. ``identity`` is that of host memory; None for a device's.

    Raises :class:`UntrustedExtent` if the slots do not fit in ``size_bytes``, the size of the
    handle's memory.
    """

    generations: memoryview | None = None
    identity: MemoryIdentity | None = None

    def __init__(self, extent: types_pb2.Extent, size_bytes: int) -> None:
        if not extent.slot_count or not extent.slot_bytes:
            raise UntrustedExtent(f"extent {extent.extent_id} has no slots")
        needed = extent.offset + extent.slot_count * extent.slot_bytes
        if needed > size_bytes:
            raise UntrustedExtent(f"extent {extent.extent_id} needs {needed} of {size_bytes} bytes")
        self.extent_id = extent.extent_id
        self.arena_id = extent.arena_id
        self.slot_count = extent.slot_count
        self.slot_bytes = extent.slot_bytes
        self._slots = slice(extent.offset, needed)

    @property
    @abstractmethod
    def device(self) -> int | None:
        """The memory's CUDA device, by this process's numbering; None for host memory."""

    @abstractmethod
    def view(self) -> memoryview:
        """Returns all slots as bytes: slot i begins at ``i * slot_bytes``.

        Raises :class:`~kvstore_client.errors.NotHostMemory` for memory of a device.
        """

    @abstractmethod
    def wait_for_device(self) -> None:
        """Waits until all work of this process on the memory's device is done."""

    def populate(self, begin: int) -> int | None:
        """Prepares some of the memory for its first use, from byte ``begin`` on.

        Returns the byte to continue from, or None if nothing is left to prepare.
        """
        del begin
        return None

    def fill(self, slots: Iterable[int], part: slice) -> None:
        """Fills this process's page tables for ``part`` of each slot's bytes, once a slot.

        Memory of a device has none. Raises ``IndexError`` for a slot that does not exist.
        """
        del slots, part

    @abstractmethod
    def _bytes(self) -> "torch.Tensor":
        """Returns all slots as one row of uint8 that keeps the memory mapped."""

    def slot(self, index: int) -> memoryview:
        """Returns one slot as bytes. Raises ``IndexError``, and as :meth:`view` does."""
        if not 0 <= index < self.slot_count:
            raise IndexError(
                f"extent {self.extent_id} has {self.slot_count} slots, none is {index}"
            )
        return self.view()[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    @abstractmethod
    def content(self, index: int) -> memoryview:
        """Returns one slot's bytes for reading: in place on the host, a copy from a device.

        Raises ``IndexError``, and for a device torch's errors if the copy fails.
        """

    def tensor(self, layout: PageLayout) -> "torch.Tensor":
        """Returns all slots as ``[slots, *page shape]`` of the layout's dtype.

        Opaque pages are ``[slots, page_bytes]`` of uint8. Loads torch.
        """
        import torch  # noqa: PLC0415  # on demand: clients without torch use views

        pages = self._bytes().view(self.slot_count, -1)[:, : layout.page_bytes]
        if not isinstance(layout.content, PagedContent):
            return pages
        shape = layout.content.page_shape(layout.page_tokens)
        elements = pages.view(getattr(torch, layout.content.dtype))
        assert elements.shape[1] == prod(shape)  # the layout checked itself
        return elements.view(self.slot_count, *shape)


# Returns an extent by its id, or None if it is not mapped.
FindExtent: TypeAlias = Callable[[int], MappedExtent | None]


def checksums_of(find: FindExtent, pages: Iterable[PageRef], *, wanted: bool | None) -> list[int]:
    """Returns the xxh3-64 of each page's whole slot, or an empty list if none was computed.

    ``find`` returns an extent by its id. ``wanted`` is ``ClientConfig.page_checksums``. All
    device work on the pages must be done. Pages of a device are copied to the host. A slot that
    does not exist here has no checksum.
    """
    checksums = []
    for extent_id, slot in pages:
        extent = find(extent_id)
        if (
            extent is None
            or slot >= extent.slot_count
            or not (extent.device is None if wanted is None else wanted)
        ):
            checksums.append(NO_CHECKSUM)
        else:
            checksums.append(xxh3_64_intdigest(extent.content(slot)))
    return checksums if any(checksums) else []
