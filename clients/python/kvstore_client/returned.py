"""What a session gives back."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Returned(NamedTuple):
    """Holds, under numbers, or extents that are given back. ``last`` is the lease itself."""

    numbers: tuple[int, ...] = ()
    pin_ids: Sequence[int] = ()
    reservation_ids: Sequence[int] = ()
    extent_ids: Sequence[int] = ()
    last: bool = False


@dataclass
class Batch:
    """What waited together."""

    numbers: list[int] = field(default_factory=list)
    pin_ids: list[int] = field(default_factory=list)
    reservation_ids: list[int] = field(default_factory=list)
    extent_ids: list[int] = field(default_factory=list)
    last: bool = False

    def add(self, item: Returned) -> None:
        """Take one more, which comes after those before."""
        self.numbers.extend(item.numbers)
        self.pin_ids.extend(item.pin_ids)
        self.reservation_ids.extend(item.reservation_ids)
        self.extent_ids.extend(item.extent_ids)
        self.last = item.last
