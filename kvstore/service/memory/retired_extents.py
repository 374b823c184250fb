"""Extents that return to the budget, from their retirement to their destruction."""

from dataclasses import dataclass
from threading import Lock
from time import sleep

import structlog

from kvstore import background
from kvstore.core import PrefixCache
from kvstore.core.pool.arena import Arena
from kvstore.core.verbs.reclaim import Retirement, Survey
from kvstore.service.clock import Clock
from kvstore.service.event_watches import ChangePublisher
from kvstore.storage.arenas import Arenas

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds until another extent is asked for too, and until the log names the processes that have not
# unmapped it: longer than most requests.
PATIENCE = 10.0
# The work under the mutex at a time, in pages to remove: a millisecond.
WORK_AT_ONCE = 512


@dataclass
class _RetiredExtent:
    """A retiring extent: when it retired and became empty, and whether its holders were logged."""

    retired_at: float
    emptied_at: float | None = None
    named: bool = False


class ExtentReclaim:
    """Retires extents, asks processes to unmap them, and destroys them. For one thread at a time.

    ``mutex`` is the store's; it guards ``cache`` and is never held while memory is freed.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        arenas: Arenas,
        announcer: ChangePublisher,
        clock: Clock,
    ) -> None:
        self._cache = cache
        self._mutex = mutex
        self._arenas = arenas
        self._announcer = announcer
        self._clock = clock
        # By extent. Any thread may check whether it is empty.
        self.under_way: dict[int, _RetiredExtent] = {}

    def hurried(self) -> bool:
        """Returns whether an extent retired so recently that no second one should retire yet."""
        latest = max((each.retired_at for each in self.under_way.values()), default=None)
        return latest is not None and self._clock() < latest + PATIENCE

    def resume(self, arena: Arena) -> None:
        """Goes on with the extents that retired under the server before this one."""
        for extent_id in arena.retiring:
            self.under_way[extent_id] = _RetiredExtent(self._clock())

    def begin(self, arena: Arena, extent_id: int) -> Retirement:
        """Retires an extent, under the store's mutex. Returns what removes its pages."""
        self.under_way[extent_id] = _RetiredExtent(self._clock())
        return self._cache.begin_retirement(arena.arena_id, extent_id)

    def in_parts(self, work: Retirement | Survey) -> None:
        """Does all of some work, a part at a time. Calls get the mutex between two parts."""
        while True:
            with self._mutex:
                self._cache.events.now = self._clock()
                if not work.go_on(WORK_AT_ONCE):
                    return
            sleep(background.PAUSE)

    def go_on(self) -> None:
        """Destroys empty extents that nobody maps, and asks for the others to be unmapped."""
        if not self.under_way:
            return
        now = self._clock()
        with self._mutex:
            empty = [each for each in self._cache.emptied_extents() if each in self.under_way]
            gone = [each for each in empty if self._cache.remove_extent(each)]
            holders = {each: self._cache.state.mappings.pids(each) for each in empty}
        for extent_id in gone:
            departure = self.under_way.pop(extent_id)
            shape = self._arenas.destroy(extent_id)
            seconds = round(now - departure.retired_at, 3)
            log.info(
                "extent_destroyed",
                extent_id=extent_id,
                arena_id=shape.arena_id,
                size_bytes=shape.size_bytes,
                seconds=seconds,
            )
        waiting = [self.under_way[each] for each in empty if each not in gone]
        fresh = [each for each in waiting if each.emptied_at is None]
        for departure in fresh:
            departure.emptied_at = now
        if fresh:
            self._announcer.announce()
        self._name_holders(holders, now)

    def _name_holders(self, holders: dict[int, list[int]], now: float) -> None:
        """Logs once the processes that were asked to unmap an extent and did not."""
        for extent_id, departure in self.under_way.items():
            if departure.emptied_at is None or departure.named:
                continue
            if now >= departure.emptied_at + PATIENCE:
                departure.named = True
                log.warning("extent_still_mapped", extent_id=extent_id, pids=holders[extent_id])
