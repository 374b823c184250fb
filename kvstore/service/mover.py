"""Moves between tiers, carried out: decided under the store's mutex, copied outside it."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from threading import Event, Lock

import structlog

from kvstore.core.arena import Arena
from kvstore.core.cache import PrefixCache
from kvstore.core.moving import Move
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.storage.errors import CudaFailed
from kvstore.storage.tiers import Tiers

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Pages decided on at once at most: each takes some microseconds under the store's mutex.
BATCH_PAGES = 256
# Rounds of one step, so that the thread shows that it gets round.
ROUNDS = 64


class Mover:
    """Copies pages from one tier to another. Thread-safe.

    ``mutex`` is the store's, under which ``cache`` may be used; it is never held while
    bytes are copied. ``due`` is set when there is something to do.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        clock: Clock,
        took: Callable[[Arena], None],
    ) -> None:
        """``took`` is told, under the mutex, of arenas that slots were taken of."""
        self.due = Event()
        self._took = took
        self._cache = cache
        self._mutex = mutex
        self._memory = memory
        self._writing = Lock()
        self._lines = LogBudget(clock)

    def note(self) -> None:
        """Set ``due`` if something is to be moved; under the store's mutex."""
        if self._cache.moves_wanted():
            self.due.set()

    def step(self) -> None:
        """Move what is to be moved, until there is nothing, or for a good while."""
        for _ in range(ROUNDS):
            with self._mutex:
                before = self._cache.moves_wanted()
                moves = self._cache.plan_moves(BATCH_PAGES)
                for move in moves:
                    self._took(move.namespace.arena_in(move.tier))
            if not (before or moves):
                return
            self.carry_out(moves)
        self.due.set()

    def carry_out(self, moves: Items[Move]) -> None:
        """Copy the pages of moves that were begun, and finish them.

        Whatever a copy raises, no move stays under way.
        """
        waiting = deque(moves)
        try:
            while waiting:
                copied = self._copy(waiting[0])
                with self._mutex:
                    self._cache.finish_moves([waiting.popleft()], copied=copied)
        finally:
            if waiting:
                with self._mutex:
                    self._cache.finish_moves(waiting, copied=False)

    def _copy(self, move: Move) -> bool:
        try:
            return all(self._memory.copy(each.source, each.target) for each in move.transfers)
        except CudaFailed as error:
            with self._writing:
                self._lines.write(log.warning, "move_failed", tier=move.tier, why=str(error))
            return False
