"""A server with a fault put in on purpose: ``python broken_store.py FAULT ARGUMENTS``.

Each fault switches one protection of the store off, so that a test can show what
it is there for, and that it would see it fail.
"""

import sys
from array import array
from collections.abc import Callable
from pathlib import Path

from kvstore.__main__ import main
from kvstore.core.cache import PrefixCache
from kvstore.core.lease import Lease
from kvstore.core.namespace import Namespace
from kvstore.core.slots import INDEX_BITS, Slots, SlotState


def program(fault: str) -> tuple[str, ...]:
    """Return the program of a store with a fault, for ``running_store``."""
    return (str(Path(__file__)), fault)


def recycle_pinned_slots() -> None:
    """Have a reserve that lacks slots take all cached ones, pinned or not; they stay matchable."""
    take = PrefixCache._take

    def take_anything(cache: PrefixCache, lease: Lease, namespace: Namespace, count: int) -> Slots:
        arena = namespace.arena
        if arena.free_count < count:
            cached = array("Q")
            for extent in arena.extents.values():
                base = extent.extent_id << INDEX_BITS
                states = enumerate(extent.states)
                cached.extend(base | index for index, each in states if each == SlotState.CACHED)
            arena.recycle(cached, SlotState.CACHED)
        return take(cache, lease, namespace, count)

    PrefixCache._take = take_anything  # type: ignore[method-assign]


FAULTS: dict[str, Callable[[], None]] = {
    "pinned-slots-recycled": recycle_pinned_slots,
}


if __name__ == "__main__":
    fault, *arguments = sys.argv[1:]
    FAULTS[fault]()
    sys.exit(main(arguments))
