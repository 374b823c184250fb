"""The events that watches receive, their bounds, and the log that remembers them."""

from dataclasses import replace

import pytest

from kvstore.core.values.event_log import (
    Event,
    EventBatch,
    EventLog,
    EventWatch,
    LeaseEvent,
    LeaseStep,
    NamespaceEvent,
    NamespaceStep,
)
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Identity
from kvstore.errors import QuotaExceeded

LIMITS = Limits(
    max_watchers=3, max_watchers_in_all=6, max_waiting_events=4, max_remembered_events=2
)


class Watcher:
    """A watch of a tenant's, and how often it was woken."""

    def __init__(
        self, tenant: str = "a", namespace_id: bytes = b"", *, admin: bool = False
    ) -> None:
        self.woken = 0
        self.watch = EventWatch(
            Identity(tenant, admin=admin), namespace_id, room=4, wake=self._wake
        )

    def _wake(self) -> None:
        self.woken += 1


def event(number: int, tenant: str = "a", namespace_id: bytes = b"space") -> Event:
    """Returns an event that is told from others by its time."""
    return NamespaceEvent(float(number), tenant, namespace_id, NamespaceStep.OPENED)


def times(batch: EventBatch) -> list[float]:
    """Returns the times of a batch."""
    return [each.at for each in batch.events]


def test_a_watch_is_told_what_happens_after_it_began() -> None:
    """In order, once, and it is woken when there is something again."""
    log, watcher = EventLog(LIMITS), Watcher()
    log.note(event(1))
    log.begin(watcher.watch, with_history=False)
    for number in (2, 3, 4):
        log.note(event(number))
    assert (watcher.woken, len(watcher.watch)) == (1, 3)
    assert times(watcher.watch.take(2)) == [2, 3]
    log.note(event(5))
    assert times(watcher.watch.take(9)) == [4, 5]
    assert watcher.watch.take(9) == EventBatch(0, [])
    log.note(event(6))
    assert watcher.woken == 2


def test_a_slow_watcher_loses_the_oldest_and_learns_how_many() -> None:
    """The count is of those right before the first event that it is told next."""
    log, watcher = EventLog(LIMITS), Watcher()
    log.begin(watcher.watch, with_history=False)
    for number in range(7):
        log.note(event(number))
    told = watcher.watch.take(2)
    assert (told.lost_count, times(told)) == (3, [3, 4])
    assert watcher.watch.take(9).lost_count == 0


def test_what_watchers_lose_is_counted() -> None:
    """For each watcher, also what it loses of what is remembered, and what its end takes along."""
    log, slow, quick = EventLog(replace(LIMITS, max_remembered_events=5)), Watcher(), Watcher()
    log.begin(slow.watch, with_history=False)
    log.begin(quick.watch, with_history=False)
    for number in range(5):
        log.note(event(number))
        quick.watch.take(1)
    assert (log.count, log.lost_count) == (5, 1)
    log.begin(Watcher().watch, with_history=True, goes_on=False)
    assert log.lost_count == 2
    log.end(slow.watch)
    log.note(event(5))
    assert log.lost_count == 2


def test_the_latest_events_are_remembered() -> None:
    """A watch may begin with them, as many as there is room for; or have nothing but them."""
    log, both, past = EventLog(LIMITS), Watcher(), Watcher()
    for number in range(5):
        log.note(event(number))
    log.begin(both.watch, with_history=True)
    log.begin(past.watch, with_history=True, goes_on=False)
    log.note(event(5))
    assert times(both.watch.take(9)) == [3, 4, 5]
    assert times(past.watch.take(9)) == [3, 4]


def test_a_tenant_sees_its_own_alone() -> None:
    """An admin sees all; with a namespace only what happens in it, and no lease."""
    log = EventLog(LIMITS)
    own, admin = Watcher("a"), Watcher("root", admin=True)
    inside, strange = Watcher("a", b"space"), Watcher("a", b"other")
    for each in (own, admin, inside, strange):
        log.begin(each.watch, with_history=False) if each is not strange else None
    log.note(event(1))
    log.note(event(2, "b", b"other"))
    log.note(LeaseEvent(3.0, "a", b"", LeaseStep.GRANTED, b"lease", "name"))
    assert times(own.watch.take(9)) == [1, 3]
    assert times(admin.watch.take(9)) == [1, 2, 3]
    assert times(inside.watch.take(9)) == [1]
    assert not strange.watch.sees("b", b"other")
    assert log.is_watched("b", b"other")
    log.end(admin.watch)
    assert not log.is_watched("b", b"other")
    assert log.is_watched("a", b"")


def test_an_ended_watch_is_told_nothing() -> None:
    """Ending it can be repeated."""
    log, watcher = EventLog(LIMITS), Watcher()
    log.begin(watcher.watch, with_history=False)
    for _ in range(2):
        log.end(watcher.watch)
    log.note(event(1))
    assert len(watcher.watch) == 0


def test_watches_are_bounded_and_leave_room_for_others() -> None:
    """Watches are bounded for a tenant and in all: with fewer places left, one may have fewer."""
    log = EventLog(LIMITS)

    def begin(tenant: str) -> EventWatch:
        watch = Watcher(tenant).watch
        log.begin(watch, with_history=True)
        return watch

    mine = [begin("a") for _ in range(3)]
    with pytest.raises(QuotaExceeded) as caught:
        begin("a")
    assert caught.value.metadata == {"quota": "watchers", "maximum": "3"}
    log.begin(Watcher("a").watch, with_history=True, goes_on=False)
    begin("b")
    begin("b")
    with pytest.raises(QuotaExceeded):
        begin("b")
    begin("c")
    with pytest.raises(QuotaExceeded):
        begin("d")
    log.end(mine[0])
    begin("d")


def test_those_that_look_back_are_bounded_too() -> None:
    """By as many places of their own: a client that takes nothing keeps a thread all the same."""
    log = EventLog(LIMITS)
    past = [Watcher("a").watch for _ in range(3)]
    for each in past:
        log.begin(each, with_history=True, goes_on=False)
    with pytest.raises(QuotaExceeded):
        log.begin(Watcher("a").watch, with_history=True, goes_on=False)
    log.begin(Watcher("a").watch, with_history=True)
    log.begin(Watcher("b").watch, with_history=True, goes_on=False)
    log.end(past[0])
    log.begin(Watcher("a").watch, with_history=True, goes_on=False)
