"""The threads that run periodic work: expiry, growth, moves, and garbage collection.

Python's own full collection visits each tracked object: 0.3 s of standstill with a million cached
pages on an idle core. It recurs as the index grows. The collector here collects often, while few
objects are new, and exempts the survivors (``gc.freeze``).

Frozen objects are freed by their reference counts, unless they are part of a cycle by then.
``benchmarks/index.py`` measures both ways.
"""

import gc
from collections.abc import Callable, Iterable, Sequence
from threading import Event, Thread

import structlog

from kvstore.service.clock import Clock
from kvstore.service.memory.arena_growth import Growth
from kvstore.service.page_io.disk_writer import Keeper
from kvstore.service.page_io.pin_refresher import PinRefresher
from kvstore.service.page_io.remote_facts import RemoteFacts
from kvstore.service.store import KVStore

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Ticker:
    """Ticks every ``interval`` seconds, and at once when ``due`` is set.

    A tick calls each of ``works``. The thread survives every exception: it logs and counts it, and
    the next tick comes. ``failure_count`` and ``last_tick`` may be read from any thread.
    """

    def __init__(
        self,
        name: str,
        works: Sequence[Callable[[], None]],
        *,
        clock: Clock,
        interval: float,
        due: Event | None = None,
        gather: float = 0.0,
        excused: Callable[[], bool] = lambda: False,
    ) -> None:
        """Makes a ticker; ``excused`` says, on any thread, whether current work may take long.

        Once ``due`` is set, it waits ``gather`` seconds for more work before the tick.
        """
        self.failure_count = 0
        self._failed = f"{name}_failed"
        self._works = works
        self._ticked_at = clock()
        self._clock = clock
        self._interval = interval
        self._due = due or Event()
        self._gather = gather
        self._excused = excused
        self._closing = Event()
        self._thread = Thread(target=self._run, name=f"kvstore-{name}", daemon=True)

    @property
    def last_tick(self) -> float:
        """The clock's time at the last complete tick, or now while work is excused."""
        return self._clock() if self._excused() else self._ticked_at

    def start(self) -> None:
        """Starts the thread. Must be called once."""
        self._thread.start()

    def pace(self, interval: float) -> None:
        """Ticks every ``interval`` seconds from now on; the next tick comes at once."""
        self._interval = interval
        self._due.set()

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stops the thread and waits for its end, after work under way has finished."""
        self._closing.set()
        self._due.set()
        self._thread.join()

    def tick(self) -> None:
        """Runs all the work once; raises nothing."""
        for work in self._works:
            try:
                work()
            except Exception:
                self.failure_count += 1
                log.exception(self._failed, failure_count=self.failure_count)
        self._ticked_at = self._clock()

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._due.wait(self._interval) and self._gather:
                self._closing.wait(self._gather)
            self._due.clear()
            self.tick()


class Reaper(Ticker):
    """Expires leases and named pins, and removes corrupt pages, among other periodic work."""

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        works = (
            store.expire,
            store.named_pins.expire,
            store.remove_condemned,
            store.thrash.look,
            store.tier3.step,
        )
        super().__init__("reaper", works, clock=clock, interval=interval)


class MoveTicker(Ticker):
    """Moves pages between tiers, at once when a move is due."""

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        mover = store.mover
        super().__init__("mover", (mover.step,), clock=clock, interval=interval, due=mover.due)


# Seconds in which touches of pages are gathered: each round costs threads their wake-ups and the
# disk a sync, however few pages it writes.
GATHER_SECONDS = 0.02


class DiskWriteTicker(Ticker):
    """Writes pages to one page store, at once when a write is due.

    A remote engine may take long for a tick, and is watched by its page store.
    """

    def __init__(self, keeper: Keeper, *, clock: Clock, interval: float) -> None:
        super().__init__(
            keeper.name,
            (keeper.step,),
            clock=clock,
            interval=interval,
            due=keeper.due,
            gather=GATHER_SECONDS,
            excused=lambda: keeper.may_wait,
        )


class JournalCleaner(Ticker):
    """Keeps room in the journal, a slice of records at a time, and cleans all of it once due."""

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        works, due = (store.cleaning.step,), store.cleaning.due
        super().__init__("cleaner", works, clock=clock, interval=interval, due=due)


class CarrierKeeper(Ticker):
    """Finds the carrier of the store's memory again once it is lost, and proves what it had."""

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        works = (store.succession.restore_carrier, store.prove_all, store.count_left)
        super().__init__("carrier", works, clock=clock, interval=interval)


class RemoteChecks(Ticker):
    """Asks the remote tier's engine for settings that cost hits: now, and once in a while."""

    def __init__(self, about: RemoteFacts, *, clock: Clock, interval: float) -> None:
        now = Event()
        now.set()
        super().__init__(
            "remote_checks", (about.ask_engine,), clock=clock, interval=interval, due=now
        )


class PinRefreshTicker(Ticker):
    """Keeps the pages of named pins in page stores whose pages expire."""

    def __init__(
        self, refreshers: Iterable[PinRefresher], *, clock: Clock, interval: float
    ) -> None:
        works = [each.step for each in refreshers]
        super().__init__("pin_refresher", works, clock=clock, interval=interval)


class Grower(Ticker):
    """Moves memory between the budget and the arenas, at once when that is due.

    It has its own thread because the kernel takes a second for several GiB. An allocation or a free
    counts as progress for at most a minute.
    """

    def __init__(self, growth: Growth, *, clock: Clock, interval: float) -> None:
        super().__init__(
            "growth",
            (growth.step,),
            clock=clock,
            interval=interval,
            due=growth.due,
            excused=lambda: growth.takes_its_time,
        )


# Allocations between two collections of the youngest generation, of which the middle one waits for
# four: a collection of 3,500 objects takes half a millisecond, in which no thread runs. Python's
# default is ten. The third value would start a full collection.
THRESHOLDS = (700, 4, 1 << 30)
# Middle collections after which a collection is due. It then takes about a millisecond.
ROUNDS = 2
# Seconds after which a collection is due in any case.
AT_LATEST = 60.0


class Collector:
    """Collects new objects in small portions. ``step`` is to be called several times a second."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at = clock()

    def begin(self) -> None:
        """Stops automatic full collections, for the whole process."""
        gc.set_threshold(*THRESHOLDS)
        self.step()

    def step(self) -> None:
        """Collects the objects made since the last time, if that is due."""
        now = self._clock()
        if now >= self._due_at or gc.get_count()[2] >= ROUNDS:
            self._due_at = now + AT_LATEST
            gc.collect()
            gc.freeze()
