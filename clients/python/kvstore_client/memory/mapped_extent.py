"""One extent of the store's memory, mapped into this process, wherever it is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, TypeAlias

from xxhash import xxh3_64_intdigest

from kvstore.v1 import types_pb2
from kvstore_client.layout import PagedContent, PageLayout
from kvstore_client.pages import PageRef

if TYPE_CHECKING:
    import torch

# The checksum of a page whose bytes were not read.
NO_CHECKSUM = 0


class UntrustedExtent(Exception):
    """What was announced is not what came: no memory to work on."""


class MappedExtent(ABC):
    """The memory of one extent, readable and writable, shared with all who map it.

    The memory is unmapped when this object and every view that it gave are gone.
    A forked child has no such memory, and does not unmap. Any thread may use it.

    ``generations`` has each slot's, as the store has it now, by the slot's index;
    None where the store does not tell.

    Raises :class:`UntrustedExtent` where the slots do not fit ``size_bytes``, what
    the handle reaches.
    """

    generations: memoryview | None = None

    def __init__(self, extent: types_pb2.Extent, size_bytes: int) -> None:
        if not extent.slot_count or not extent.slot_bytes:
            msg = f"extent {extent.extent_id} has no slots"
            raise UntrustedExtent(msg)
        needed = extent.offset + extent.slot_count * extent.slot_bytes
        if needed > size_bytes:
            msg = f"extent {extent.extent_id} needs {needed} of {size_bytes} bytes"
            raise UntrustedExtent(msg)
        self.extent_id = extent.extent_id
        self.arena_id = extent.arena_id
        self.slot_count = extent.slot_count
        self.slot_bytes = extent.slot_bytes
        self._slots = slice(extent.offset, needed)

    @property
    @abstractmethod
    def device(self) -> int | None:
        """The CUDA device that the memory is on, as this process counts them; None: the host."""

    @abstractmethod
    def view(self) -> memoryview:
        """Returns all slots as bytes: slot i begins at ``i * slot_bytes``.

        Raises :class:`~kvstore_client.errors.NotHostMemory` for memory of a device.
        """

    @abstractmethod
    def wait_for_device(self) -> None:
        """Waits until all work that this process gave to the memory's device is done."""

    def populate(self, begin: int) -> int | None:
        """Prepares some of the memory, from a byte on, for its first use.

        Returns where to go on, or None where nothing is left to do.
        """
        del begin
        return None

    @abstractmethod
    def _bytes(self) -> "torch.Tensor":
        """Returns all slots as one row of uint8 that keeps the memory mapped."""

    def slot(self, index: int) -> memoryview:
        """Returns one slot as bytes; raises ``IndexError``, and as :meth:`view` does."""
        if not 0 <= index < self.slot_count:
            msg = f"extent {self.extent_id} has {self.slot_count} slots, none is {index}"
            raise IndexError(msg)
        return self.view()[index * self.slot_bytes : (index + 1) * self.slot_bytes]

    @abstractmethod
    def content(self, index: int) -> memoryview:
        """Returns one slot's bytes to be read: in place on the host, of a device a copy.

        Raises ``IndexError``; for a device what torch raises where the copy fails.
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
    """Returns the xxh3-64 of each page's whole slot, or nothing where nobody looked at any.

    ``find`` returns an extent by its id. ``wanted`` is ``ClientConfig.page_checksums``.
    Device work on the pages is done; those of a device are copied to the host.
    """
    checksums = []
    for page in pages:
        extent = find(page.extent_id)
        if extent is None or not (extent.device is None if wanted is None else wanted):
            checksums.append(NO_CHECKSUM)
        else:
            checksums.append(xxh3_64_intdigest(extent.content(page.slot)))
    return checksums if any(checksums) else []
