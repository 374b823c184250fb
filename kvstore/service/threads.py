"""A thread that does its work again and again, and shows that it gets round."""

# The threads that let time pass: leases and named pins expire, arenas grow and give. When Python
# looks for cycles: often among what is new, never through the whole index. A full collection
# looks at each tracked thing: 0.3 s of standstill with a million cached pages on an idle core,
# and it comes by itself, again and again as the index grows. So it is asked for instead, while
# little is new, and what outlives it is looked at no more (``gc.freeze``): what is given back is
# freed all the same, by its count of references, unless it is part of a cycle by then.
# benchmarks/index.py measures both.

import gc
from collections.abc import Callable, Sequence
from threading import Event, Thread

import structlog

from kvstore.service.clock import Clock
from kvstore.service.memory.growth import Growth
from kvstore.service.store import KVStore

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Ticker:
    """Ticks every ``interval`` seconds, and at once when ``due`` is set.

    A tick calls each of ``works``. It outlives every exception: one is logged and
    counted, and the next tick comes. ``failure_count`` and ``last_tick`` may be read
    from any thread.
    """

    def __init__(
        self,
        name: str,
        works: Sequence[Callable[[], None]],
        *,
        clock: Clock,
        interval: float,
        due: Event | None = None,
        excused: Callable[[], bool] = lambda: False,
    ) -> None:
        """``excused`` tells, on any thread, whether the work under way may take its time."""
        self.failure_count = 0
        self._failed = f"{name}_failed"
        self._works = works
        self._ticked_at = clock()
        self._clock = clock
        self._interval = interval
        self._due = due or Event()
        self._excused = excused
        self._closing = Event()
        self._thread = Thread(target=self._run, name=f"kvstore-{name}", daemon=True)

    @property
    def last_tick(self) -> float:
        """When it last got round, by the clock; now, while its work is excused."""
        return self._clock() if self._excused() else self._ticked_at

    def start(self) -> None:
        """Starts the thread; once."""
        self._thread.start()

    def pace(self, interval: float) -> None:
        """Ticks every ``interval`` seconds from now on; the next tick comes at once."""
        self._interval = interval
        self._due.set()

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stops the thread and waits for its end; work under way is finished first."""
        self._closing.set()
        self._due.set()
        self._thread.join()

    def tick(self) -> None:
        """Does all the work once; raises nothing."""
        for work in self._works:
            try:
                work()
            except Exception:
                self.failure_count += 1
                log.exception(self._failed, failure_count=self.failure_count)
        self._ticked_at = self._clock()

    def _run(self) -> None:
        while not self._closing.is_set():
            self._due.wait(self._interval)
            self._due.clear()
            self.tick()


class Reaper(Ticker):
    """Ends what is past its time."""

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        works = (store.expire, store.named_pins.expire, store.thrash.look)
        super().__init__("reaper", works, clock=clock, interval=interval)


class MoveTicker(Ticker):
    """Moves pages between tiers, at once when that is due."""

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        mover = store.mover
        super().__init__("mover", (mover.step,), clock=clock, interval=interval, due=mover.due)


class KeepTicker(Ticker):
    """Has pages written to tier 3, at once when that is due."""

    def __init__(self, store: KVStore, *, clock: Clock, interval: float) -> None:
        keeper = store.tier3.keeper
        super().__init__("keeper", (keeper.step,), clock=clock, interval=interval, due=keeper.due)


class Grower(Ticker):
    """Moves memory between the budget and the arenas, at once when that is due.

    A thread of its own, for the kernel takes a second for several GiB: it is no
    silence while memory is allocated or given up, for a minute at most, and nobody
    waits for it.
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


# Allocations between two looks at the newest, and those looks between two at what
# outlived one: Python's own numbers. The third would be a full collection.
THRESHOLDS = (700, 10, 1 << 30)
# So many looks at what outlived one, of some 7,000 things each, make a collection due.
ROUNDS = 4
# Seconds after which one is due anyway.
AT_LATEST = 60.0


class Collector:
    """Collects what is new, in small portions. ``step`` is to be called every second or so."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_at = clock()

    def begin(self) -> None:
        """Let no full collection come by itself any more. For the whole process."""
        gc.set_threshold(*THRESHOLDS)
        self.step()

    def step(self) -> None:
        """Collects what came since the last time and leave the rest alone, if that is due."""
        now = self._clock()
        if now >= self._due_at or gc.get_count()[2] >= ROUNDS:
            self._due_at = now + AT_LATEST
            gc.collect()
            gc.freeze()
