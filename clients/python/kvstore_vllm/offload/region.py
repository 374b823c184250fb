"""The store's memory with the names that vLLM's CPUOffloadingWorker uses of its own region."""

import torch

from kvstore_client import AddressRange


class StoreRegion:
    """All pages of a session's address range as rows, for one rank.

    Takes the place of vLLM's ``SharedOffloadRegion``, from whose source the attributes come.
    Row r of a page is ``AddressRange.row``. Rows without memory MUST NOT be copied: callers hold
    the extents of a copy until it ended.

    Each extent is registered with the device as it is mapped. So ``total_size_bytes`` is 0, and
    vLLM registers nothing by itself.
    """

    total_size_bytes = 0

    def __init__(self, addresses: AddressRange, rank: int, begin: int) -> None:
        """``begin`` is the first byte of the rank's part of a row."""
        self.rank = rank
        self.pinned_addresses: list[int] = []
        self._row_stride = addresses.row_bytes
        self._row_count = addresses.row_count
        self._base: torch.Tensor | None = addresses.tensor().view(torch.int8)
        self._next = begin
        self._next_canonical = 0

    @property
    def is_pinned(self) -> bool:
        """Returns False: the device may have refused an extent.

        vLLM then never reads rows by a kernel on the device, which needs registered memory. Its
        copies by the driver work with both, and are as fast for registered memory.
        """
        return False

    @is_pinned.setter
    def is_pinned(self, value: bool) -> None:
        """Does nothing. vLLM sets it after it registered nothing."""

    def create_next_worker_view(self, tensor_page_size: int) -> torch.Tensor:
        """Returns the next ``tensor_page_size`` bytes of the rank's part as int8 ``[rows, bytes]``.

        Raises ``ValueError`` if they end after the row.
        """
        view = self._view(self._next, tensor_page_size)
        self._next += tensor_page_size
        return view

    def create_next_canonical_view(self, tensor_page_size: int) -> torch.Tensor:
        """Returns the next ``tensor_page_size`` bytes that all ranks share, as int8.

        They begin at the row's first byte. Raises ``ValueError`` if they end after the row.
        """
        view = self._view(self._next_canonical, tensor_page_size)
        self._next_canonical += tensor_page_size
        return view

    def cleanup(self) -> None:
        """Drops the memory. Views that were returned keep it reserved."""
        self._base = None

    def _view(self, begin: int, size: int) -> torch.Tensor:
        assert self._base is not None
        if begin + size > self._row_stride:
            raise ValueError(f"byte {begin + size} is not in a row of {self._row_stride} bytes")
        return self._base.as_strided((self._row_count, size), (self._row_stride, 1), begin)
