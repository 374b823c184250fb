"""Refreshes of named pins: a page store that lets pages expire is asked for theirs in time.

The core names the pages, a slice of one path at a time. Others ask the page store outside the
owner's mutex, which extends the lives of the pages, and finish under it.
"""

from typing import NamedTuple

from kvstore.core.cache_state import CacheState
from kvstore.core.index.path_hashes import PathHashes, hashes_to, kept_end, remember
from kvstore.core.leases.named_pins import NamedPin


class PinSlice(NamedTuple):
    """The pages that a named pin holds from page ``start`` through page ``end``.

    ``digests`` may be asked outside the owner's mutex, from page ``start`` on.
    """

    pin: NamedPin
    start: int
    end: int
    digests: PathHashes


class PinRefreshes:
    """Names the pages of named pins, and records which of them a page store has."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def all_named_pins(self) -> list[NamedPin]:
        """Returns all named pins, those of a namespace in the order of their making."""
        tables = map(self._state.named_pins.of, self._state.namespaces.values())
        return [pin for table in tables for pin in table.values()]

    def plan_refresh(self, pin: NamedPin, start: int, most: int) -> PinSlice | None:
        """Returns at most ``most`` pages of a named pin from page ``start`` on.

        Returns None if there are none, or if the pin has ended.
        """
        end = min(pin.held_end, start + most)
        if end <= start or not self._lives(pin):
            return None
        return PinSlice(pin, start, end, hashes_to(pin.position_at(end), since=start))

    def finish_slice(self, part: PinSlice) -> None:
        """Remembers the digests of a slice's pages. Does nothing once the pin has ended."""
        if self._lives(part.pin):
            remember(part.pin.position_at(part.end), part.digests, 0)

    def finish_refresh(
        self, pin: NamedPin, stored_end: int, absent: int | None, number: int = 0
    ) -> None:
        """Records that page store ``number`` has the first ``stored_end`` pages of a named pin.

        ``absent`` is the first page that it lacks, counted from 0, or None. That page and those
        after it are offered to it again. Does nothing once the pin has ended.
        """
        if not self._lives(pin):
            return
        pin.stored_end = stored_end
        if absent is not None:
            assert self._state.disk is not None  # or nobody was asked
            at = pin.position_at(pin.held_end)
            if kept_end(at, number) > absent:
                pin.namespace.lose(number)
            self._state.disk.touched(at, absent)

    def _lives(self, pin: NamedPin) -> bool:
        return self._state.named_pins.of(pin.namespace).get(pin.name) is pin
