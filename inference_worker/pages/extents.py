"""The memory of a page pool, by extent, and the rows of it that a step reads or writes."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from inference_worker.errors import LayoutMismatchError, UnknownExtentError
from inference_worker.pages.layout import PageLayout


def upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns ``numbers``, which are on the CPU, on ``device``, without waiting for the device.

    Uses pinned memory: a copy from pageable memory would wait.
    """
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


# With at most this many runs, each run is copied straight to its place.
FEW_RUNS: Final = 8


class Share(NamedTuple):
    """The rows that lie in one extent, and their places in the requested order."""

    extent: int
    rows: torch.Tensor
    places: slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class ExtentRows:
    """``count`` rows in an order, by extent: the fewest operations that read or write them."""

    count: int
    shares: tuple[Share, ...]


def find_rows(extents: torch.Tensor, rows: torch.Tensor, device: torch.device) -> ExtentRows:
    """Groups rows by extent: two int64 ``[count]`` on the CPU, in order."""
    return ExtentRows(extents.shape[0], tuple(_shares(extents, rows, device)))


def _shares(extents: torch.Tensor, rows: torch.Tensor, device: torch.device) -> Iterator[Share]:
    cuts = ((extents[1:] != extents[:-1]).nonzero().flatten() + 1).tolist()
    if len(cuts) < FEW_RUNS:
        begins = [0, *cuts] if extents.shape[0] else []
        for begin, end in zip(begins, [*cuts, extents.shape[0]], strict=False):
            here = slice(begin, end)
            yield Share(int(extents[begin]), upload(rows[here], device), here)
        return
    for extent in extents.unique().tolist():
        places = (extents == extent).nonzero().flatten()
        yield Share(extent, upload(rows[places], device), upload(places, device))


class PoolExtents:
    """Extents by key, each a tensor ``[slots, *page_shape]`` of one layout on one device.

    Not thread-safe: one engine thread uses it.
    """

    def __init__(self, layout: PageLayout, device: torch.device) -> None:
        """Starts without any extent."""
        self._layout = layout
        self._device = device
        self._dtype: torch.dtype = getattr(torch, layout.dtype)
        self._pages: dict[int, torch.Tensor] = {}
        self._uses: dict[int, int] = {}
        self._mappings: dict[int, int] = {}
        self._added = 0
        self.removed_count = 0

    @property
    def keys(self) -> frozenset[int]:
        """The keys of the extents that are mapped now."""
        return frozenset(self._pages)

    def add(self, key: int, pages: torch.Tensor) -> None:
        """Adds an extent; raises as :meth:`~inference_worker.pages.pool.PagePool.add_extent`."""
        if key in self._pages:
            raise ValueError(f"extent {key} is in this page pool already")
        found = (tuple(pages.shape[1:]), pages.dtype, pages.device, pages.is_contiguous())
        wanted = (self._layout.page_shape, self._dtype, self._device, True)
        if found != wanted:
            raise LayoutMismatchError(
                f"extent {key} is (page shape, dtype, device, contiguous) {found}, not {wanted}"
            )
        self._pages[key] = pages
        self._added += 1
        self._mappings[key] = self._added

    def remove(self, key: int) -> None:
        """Drops the view of an extent; raises ``UnknownExtentError``."""
        self.pages(key)
        del self._pages[key], self._mappings[key]
        self.removed_count += 1

    def use(self, key: int, pages: torch.Tensor) -> None:
        """Adds an extent, or counts one more use of it.

        Raises as :meth:`~inference_worker.pages.pool.PagePool.use_extent`.
        """
        if key not in self._uses:
            self.add(key, pages)
        elif self._pages[key].data_ptr() != pages.data_ptr():
            raise LayoutMismatchError(f"extent {key} is still in use at another address")
        self._uses[key] = self._uses.get(key, 0) + 1

    def leave(self, key: int) -> None:
        """Ends one use of an extent, and removes it after the last one; raises ``KeyError``."""
        self._uses[key] -= 1
        if not self._uses[key]:
            del self._uses[key]
            self.remove(key)

    def pages(self, key: int) -> torch.Tensor:
        """Returns an extent's pages; raises ``UnknownExtentError``."""
        pages = self._pages.get(key)
        if pages is None:
            raise UnknownExtentError(key)
        return pages

    def mapping(self, key: int) -> int | None:
        """Returns a number of this mapping of an extent, or None if it is not mapped.

        An extent that is removed and added again has another number: its address may differ.
        """
        return self._mappings.get(key)
