"""Rows of a pool's extents: looked up once a step, used in each of its layers."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch


def upload(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Returns ``numbers``, which are on the CPU, on ``device``, without waiting for the device.

    Memory that is not pinned would have to be waited for.
    """
    if device.type != "cuda":
        return numbers.to(device)
    return numbers.pin_memory().to(device, non_blocking=True)


# Up to so many neighbours in one extent are copied straight to where they belong.
FEW_RUNS: Final = 8


class Share(NamedTuple):
    """The rows that lie in one extent, and where in the order asked for they stand."""

    extent: int
    rows: torch.Tensor
    places: slice | torch.Tensor


@dataclass(frozen=True, slots=True)
class ExtentRows:
    """``count`` rows in an order, by extent: the fewest operations that read or write them."""

    count: int
    shares: tuple[Share, ...]


def find_rows(extents: torch.Tensor, rows: torch.Tensor, device: torch.device) -> ExtentRows:
    """Sorts rows by the extent that each is in: two int64 ``[count]`` on the CPU, in order."""
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
