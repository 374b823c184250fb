"""How arenas grow: by an extent when slots run low, allocated outside the store's mutex."""

import math
from threading import Event, Lock

import structlog

from kvstore.core.arena import Arena
from kvstore.core.cache import PrefixCache
from kvstore.errors import PoolExhausted
from kvstore.service.announcer import Announcer
from kvstore.service.clock import Clock
from kvstore.storage.arenas import Arenas
from kvstore.storage.errors import StorageError

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# An arena gets its next extent while a quarter of one is left, so that allocating it
# and having it mapped by the workers is done before the rest is used up.
WATERMARK = 0.25
# After the machine refused memory: how long nobody asks again, in seconds.
PATIENCE = 1.0


class Growth:
    """Turns memory into slots. Thread-safe; one allocation at a time.

    ``mutex`` is the store's, under which ``cache`` may be used; it is never held
    while memory is allocated. ``due`` is set when some arena runs low.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        arenas: Arenas,
        announcer: Announcer,
        clock: Clock,
        watermark: float = WATERMARK,
    ) -> None:
        self.due = Event()
        self._cache = cache
        self._mutex = mutex
        self._arenas = arenas
        self._announcer = announcer
        self._clock = clock
        self._watermark = watermark
        self._growing = Lock()
        self._wanted: dict[int, int] = {}
        self._refused = False
        self._not_before = -math.inf

    def begin(self, arena: Arena) -> None:
        """Give an arena its first extent, if it has none; takes milliseconds then.

        Raises :class:`PoolExhausted` where no memory can be had. Called without
        the store's mutex.
        """
        if arena.extents:
            return
        with self._growing:
            if arena.extents:
                return
            try:
                self._add(arena)
            except StorageError as error:
                raise PoolExhausted(
                    requested_bytes=error.requested_bytes, available_bytes=error.available_bytes
                ) from error

    def note(self, arena: Arena, wanted: int = 0) -> None:
        """Look whether an arena runs low, and set ``due`` if so; under the store's mutex.

        ``wanted`` is the number of slots that were asked for and could not be had. What
        all the memory that is left would not satisfy makes nothing grow.
        """
        if 0 < wanted <= arena.free_count + self._room(arena):
            self._wanted[arena.arena_id] = max(wanted, self._wanted.get(arena.arena_id, 0))
        if self._runs_low(arena):
            self.due.set()

    def step(self) -> None:
        """Add an extent to one arena that runs low, if any; takes milliseconds then.

        Sets ``due`` again while another step is wanted. A refusal is logged once
        and ends the growing for a while: the cache goes on with what it has.
        """
        with self._growing:
            with self._mutex:
                low = [each for each in self._cache.arenas.values() if self._runs_low(each)]
                if not low:
                    self._wanted.clear()
                    return
                poorest = min(low, key=lambda each: each.free_count)
            try:
                self._add(poorest)
            except StorageError as error:
                self._refuse(poorest.arena_id, error)
            else:
                self.due.set()

    def _runs_low(self, arena: Arena) -> bool:
        if self._room(arena) < 1 or self._clock() < self._not_before:
            return False
        mark = self._arenas.slots_in_extent(arena.slot_bytes) * self._watermark
        return arena.free_count < max(mark, self._wanted.get(arena.arena_id, 0), 1)

    def _room(self, arena: Arena) -> int:
        """Return how many slots an arena may still grow by."""
        room, quota = self._arenas.room(arena.slot_bytes), arena.quota_slots
        return room if quota is None else min(room, quota)

    def _add(self, arena: Arena) -> None:
        most = arena.quota_slots
        extent = self._arenas.allocate(arena.arena_id, arena.slot_bytes, max_slots=most)
        shape, generations = extent.shape, extent.generation_table.view
        with self._mutex:
            self._cache.add_extent(shape.arena_id, shape.extent_id, shape.slot_count, generations)
        self._refused = False
        log.info("extent_added", size_bytes=shape.size_bytes, **shape._asdict())
        self._announcer.announce()

    def _refuse(self, arena_id: int, error: StorageError) -> None:
        self._not_before = self._clock() + PATIENCE
        if not self._refused:
            log.warning("extent_refused", arena_id=arena_id, why=str(error))
        self._refused = True
