"""The longest pieces of a transfer between an engine's memory and slots of the store."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Stretch(NamedTuple):
    """A run of consecutive blocks and of consecutive slots in one extent."""

    extent_id: int
    slot: int
    block: int
    length: int


def stretches(blocks: Iterable[int], places: Iterable[tuple[int, int]]) -> Iterator[Stretch]:
    """Yields the longest pieces that are contiguous on both sides.

    ``places`` has the extent and the slot of each block. Raises ``ValueError`` if there are not
    as many.
    """
    now: Stretch | None = None
    for block, (extent_id, slot) in zip(blocks, places, strict=True):
        if now is not None and (extent_id, slot, block) == (
            now.extent_id,
            now.slot + now.length,
            now.block + now.length,
        ):
            now = now._replace(length=now.length + 1)
            continue
        if now is not None:
            yield now
        now = Stretch(extent_id, slot, block, 1)
    if now is not None:
        yield now
