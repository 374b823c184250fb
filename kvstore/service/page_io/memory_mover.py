"""Moves between tiers: chosen under the store's mutex, copied outside it."""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Sequence as Items
from contextlib import suppress
from itertools import islice
from threading import Event, Lock
from typing import NamedTuple

import structlog

from kvstore import background, tracing
from kvstore.core import PrefixCache
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.tiers.moves import Move
from kvstore.core.values.slots import INDEX_BITS
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.storage.errors import CudaFailed
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.slot_copies import Ending, Outcome


class MoveCounts(NamedTuple):
    """Copies in one direction: pages copied, pages not copied, and seconds under way."""

    pages: int = 0
    bytes: int = 0
    failed_pages: int = 0
    seconds: float = 0.0


class MoveCounter:
    """Counts copies by the tier that they go to. Thread-safe."""

    def __init__(self) -> None:
        self._mutex = Lock()
        self._counts = {FIRST: MoveCounts(), LOWER: MoveCounts()}

    def note(self, moves: list[Move], whole: list[bool], seconds: float) -> None:
        """Counts moves that were tried together; their time is shared by pages."""
        pages = max(sum(len(each.transfers) for each in moves), 1)
        with self._mutex:
            for move, copied in zip(moves, whole, strict=True):
                count = len(move.transfers)
                before = self._counts[move.tier]
                self._counts[move.tier] = MoveCounts(
                    before.pages + count * copied,
                    before.bytes + count * copied * move.namespace.layout.page_bytes,
                    before.failed_pages + count * (not copied),
                    before.seconds + seconds * count / pages,
                )

    def read(self) -> dict[tuple[int, int], MoveCounts]:
        """Returns the current counts, by source tier and target tier."""
        with self._mutex:
            return {(FIRST + LOWER - tier, tier): each for tier, each in self._counts.items()}


log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Pages chosen at once at most. Each takes some microseconds under the store's mutex.
BATCH_PAGES = 128
# Pages copied at once and then finished under the mutex. The batch is large, so that waiting for a
# device is short beside copying, and small, so that calls get in between.
COPY_PAGES = 64
# Rounds of one step, so that the thread shows progress.
ROUNDS = 64


class Mover:
    """Copies pages from one tier to another. Thread-safe.

    ``mutex`` is the store's; it guards ``cache`` and is never held while bytes are copied. ``due``
    is set when there is work.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        clock: Clock,
        took: Callable[[Arena], None],
        prove: Callable[[Collection[int]], Collection[int]] = lambda _: (),
    ) -> None:
        """Makes a mover; ``took`` is called under the mutex with arenas that gave slots.

        ``prove`` returns which of some extents have wrong bytes, of which no page may be copied.
        """
        self._prove = prove
        self.due = Event()
        self.ledger = MoveCounter()
        self._clock = clock
        self._took = took
        self._cache = cache
        self._mutex = mutex
        self._memory = memory
        self._writing = Lock()
        self._lines = LogBudget(clock)

    def note(self) -> None:
        """Sets ``due`` if a move is due. Called under the store's mutex."""
        if self._cache.state.wanted:
            self.due.set()

    def step(self) -> None:
        """Moves pages until none is left to move, or for at most ``ROUNDS`` rounds.

        If no copy succeeds, the next tick tries again, because nothing signals a device's recovery.
        Moves nothing once the device has failed for good.
        """
        if self._memory.device.lost:
            return
        for _ in range(ROUNDS):
            # Not after the plan, which takes slots that others may want.
            background.give_way()
            with self._mutex:
                before = self._cache.moves_wanted()
                moves = self._cache.plan_moves(BATCH_PAGES)
                for move in moves:
                    self._took(move.namespace.arena_in(move.tier))
            copied = self.carry_out(moves, give_way=background.give_way)
            if (moves and not copied) or not (before or moves):
                return
        self.due.set()

    def carry_out(self, moves: Items[Move], give_way: Callable[[], None] = lambda: None) -> int:
        """Copies the pages of begun moves and finishes the moves; returns how many were copied.

        One batch is copied while the batch before it is finished. ``give_way`` is called after each
        batch. If an exception is raised, no move stays under way.
        """
        if not tracing.ON or not moves:
            return self._carry_out(moves, give_way)
        pages = sum(len(each.transfers) for each in moves)
        with tracing.span("copy", pages=pages, tier=moves[0].tier):
            return self._carry_out(moves, give_way)

    def _carry_out(self, moves: Items[Move], give_way: Callable[[], None]) -> int:
        waiting, copied = deque(moves), 0
        begun: deque[tuple[list[Move], Ending]] = deque()
        since = self._clock()
        try:
            wrong = self._prove({t.source >> INDEX_BITS for m in moves for t in m.transfers})
            for batch in _batches(moves):
                pairs = [(each.source, each.target) for move in batch for each in move.transfers]
                begun.append((batch, self._memory.begin_all(pairs)))
                if len(begun) > 1:
                    copied, since = self._finish(waiting, *begun.popleft(), wrong, copied, since)
                    give_way()
            while begun:
                copied, since = self._finish(waiting, *begun.popleft(), wrong, copied, since)
        finally:
            for _, ending in begun:
                with suppress(Exception):
                    ending()
            if waiting:
                with self._mutex:
                    self._cache.finish_moves(waiting, copied=False)
        return copied

    def _finish(
        self,
        waiting: deque[Move],
        batch: list[Move],
        ending: Ending,
        wrong: Collection[int],
        copied: int,
        since: float,
    ) -> tuple[int, float]:
        """Waits for a batch and finishes it, after the first that waits. ``wrong`` are extents.

        ``copied`` counts the pages copied before, until ``since``. Returns both, updated.
        """
        outcomes = iter(ending())
        now = self._clock()
        whole = [
            self._whole(move, list(islice(outcomes, len(move.transfers))))
            and not any(each.source >> INDEX_BITS in wrong for each in move.transfers)
            for move in batch
        ]
        self.ledger.note(batch, whole, now - since)
        for each in whole:
            # Calls get in between: a move takes up to a millisecond.
            with self._mutex:
                self._cache.finish_moves([waiting.popleft()], copied=each)
        return copied + sum(whole), now

    def _whole(self, move: Move, outcomes: Items[Outcome]) -> bool:
        """Returns whether all pages of a move were copied."""
        failed = next((each for each in outcomes if isinstance(each, CudaFailed)), None)
        if failed is not None and not self._memory.device.is_lost(failed):
            with self._writing:
                self._lines.write(log.warning, "move_failed", tier=move.tier, why=str(failed))
        return not any(outcomes)


def _batches(moves: Iterable[Move]) -> Iterator[list[Move]]:
    """Yields moves in order, of COPY_PAGES pages together or slightly more."""
    batch: list[Move] = []
    pages = 0
    for move in moves:
        batch.append(move)
        pages += len(move.transfers)
        if pages >= COPY_PAGES:
            yield batch
            batch, pages = [], 0
    if batch:
        yield batch
