"""The threads that let time pass: leases and named pins expire, arenas grow and give."""

from kvstore.service.clock import Clock
from kvstore.service.growth import Growth
from kvstore.service.store import KVStore
from kvstore.service.ticker import Ticker


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
