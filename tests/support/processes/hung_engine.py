"""kvstore-server whose tier 3 is a shared engine that hangs: ``python hung_engine.py CALL ...``.

The engine hangs in ``look`` until the deadline of the call. In ``read`` it says that it has each
page, just before the deadline, and never sends one. Both are the worst that a deadline allows.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Event
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parents[1]))

from page_stores.memory_page_store import FACTS, MemoryPageStore

from kvstore import server
from kvstore.assembly import tier_setup
from kvstore.service.clock import MONOTONIC
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.page_store import PageKey, PageRead, ReadAnswer

SHARED = FACTS._replace(shared=True, loses_silently=True)
LOOK, READ = "look", "read"
# The share of the time to its deadline after which a look is answered.
ANSWERED_AT = 0.8


def program(call: str) -> tuple[str, ...]:
    """Returns the program of a store over such an engine, for ``running_store``."""
    return (str(Path(__file__)), call)


class HungPageStore(MemoryPageStore):
    """A page store that hangs in one of its calls."""

    def __init__(self, call: str) -> None:
        super().__init__(facts=SHARED)
        self._hung = call
        self._never = Event()

    def look(self, keys: Iterable[PageKey], deadline: float) -> int:
        """Answers at the deadline that it has nothing, or before it that it has all."""
        left = deadline - MONOTONIC()
        if self._hung == LOOK:
            self._never.wait(left)
            return 0
        self._never.wait(ANSWERED_AT * left)
        return len(list(keys))

    def read(
        self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None], deadline: float
    ) -> None:
        """Never answers, until it is closed."""
        self.waiting.append(lambda: MemoryPageStore.read(self, wanted, done, deadline))


def main() -> int:
    """Runs kvstore-server."""
    call = sys.argv.pop(1)
    with patch.object(tier_setup, "tier_3", lambda _: SlowTier(HungPageStore(call))):
        return server.run()


if __name__ == "__main__":
    sys.exit(main())
