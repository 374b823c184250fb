"""Lines of the log about pages that were evicted too early."""

from threading import Lock

from kvstore.core.cache import PrefixCache
from kvstore.core.values.limits import Limits
from kvstore.service.thrash_watch import INTERVAL, LEAST_PAGES, ThrashWatch
from wire.own_logs import own_logs


class Rig:
    """A watch over counters that the test writes, on a clock that it moves."""

    def __init__(self) -> None:
        self.now = 5.0
        self.cache = PrefixCache(1, Limits())
        self.watch = ThrashWatch(self.cache, Lock(), lambda: self.now)

    def minute(self, inserted: int, returned: int, seconds: float = INTERVAL) -> list[object]:
        """Passes a minute in which some pages were inserted and returned; returns the lines."""
        self.now += seconds
        self.cache.counters.inserted_page_count += inserted
        self.cache.counters.returned_page_count += returned
        with own_logs() as lines:
            self.watch.look()
        return [(each["inserted_page_count"], each["returned_page_count"]) for each in lines]


def test_a_minute_of_thrash_is_one_line() -> None:
    """The line counts the minute's pages alone, and comes when the minute is over."""
    rig = Rig()
    assert rig.minute(1000, 10) == []
    assert rig.minute(400, 80, INTERVAL / 2) == []
    assert rig.minute(0, 0, INTERVAL / 2) == [(400, 80)]


def test_the_last_minute_s_part_is_kept() -> None:
    """Until the next is over, whether it is worth a line or not."""
    rig = Rig()
    assert rig.watch.ratio == 0
    rig.minute(1000, 10)
    assert rig.watch.ratio == 0.01
    rig.minute(400, 80, INTERVAL / 2)
    assert rig.watch.ratio == 0.01
    rig.minute(0, 0, INTERVAL / 2)
    assert rig.watch.ratio == 0.2
    rig.minute(0, 0)
    assert rig.watch.ratio == 0


def test_little_that_returns_is_no_line() -> None:
    """Neither few pages, nor a small part of many."""
    rig = Rig()
    assert rig.minute(LEAST_PAGES - 1, LEAST_PAGES - 1) == []
    assert rig.minute(10_000, 1_999) == []
    assert rig.minute(10_000, 2_000) == [(10_000, 2_000)]


def test_lines_are_few() -> None:
    """However long it goes on, the lines come minutes apart."""
    rig = Rig()
    lines = [rig.minute(1000, 1000) for _ in range(30)]
    assert 1 <= sum(map(len, lines)) <= 13
