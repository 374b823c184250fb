"""The pages of one component of a model's cache, cut into parts that fit slots of the store.

SGLang calls full attention, sliding windows and recurrent state the components of its cache. The
store has slots of one size, and a page of each KV cache group in one slot. So a page of another
component has as many groups as it fills slots.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from kvstore_client import GroupWindow


class PagePiece(NamedTuple):
    """Bytes of each page that lie together: a column of a layer's plane, and their place.

    ``plane`` is ``[pages, bytes]`` of uint8 and shares the pool's memory. The bytes begin at
    ``begin`` in the slot of part ``part``.
    """

    plane: torch.Tensor
    part: int
    begin: int


@dataclass(frozen=True, eq=False)
class ComponentPages:
    """The pages of one component, by SGLang's name of its pool.

    ``groups`` has the store's group of each part of a page. A match needs the last ``window``
    pages before its end, all of them if it is 0. ``pieces`` has the bytes of each layer of the
    model that the component has. A page has ``page_slots`` slots of the pool; ``page_numbers``
    returns the numbers of pages in some slots, in their order.
    """

    name: str
    groups: tuple[int, ...]
    window: int
    pieces: Mapping[int, tuple[PagePiece, ...]]
    page_slots: int
    page_numbers: Callable[[torch.Tensor], list[int]]

    def page_count(self, slots: torch.Tensor) -> int:
        """Returns how many pages some slots have, without waiting for a device."""
        return len(slots) // self.page_slots

    @property
    def windows(self) -> tuple[GroupWindow, ...]:
        """The window of each part in a match; group 0 has none, since it is the path itself."""
        return tuple(GroupWindow(group, self.window) for group in self.groups if group)

    def needed(self, page_count: int) -> int:
        """Returns how many of ``page_count`` new pages a request needs of this component."""
        return min(self.window, page_count) if self.window else page_count


def cut(
    layers: Mapping[int, Sequence[torch.Tensor]], slot_bytes: int
) -> tuple[dict[int, tuple[PagePiece, ...]], int]:
    """Cuts pages into parts of at most ``slot_bytes``; returns the pieces, and how many parts.

    ``layers`` has the planes of each layer of the model, each ``[pages, bytes]``. In a page their
    bytes follow each other in this order.
    """
    pieces: dict[int, tuple[PagePiece, ...]] = {}
    end = 0
    for layer, planes in layers.items():
        found: list[PagePiece] = []
        for plane in planes:
            found += _pieces(plane, end, slot_bytes)
            end += plane.shape[1]
        pieces[layer] = tuple(found)
    return pieces, -(-end // slot_bytes)


def _pieces(plane: torch.Tensor, position: int, slot_bytes: int) -> Iterator[PagePiece]:
    """Yields the pieces of a plane whose bytes begin at ``position`` of a page."""
    column, size = 0, plane.shape[1]
    while column < size:
        part, begin = divmod(position + column, slot_bytes)
        length = min(size - column, slot_bytes - begin)
        yield PagePiece(plane[:, column : column + length], part, begin)
        column += length
