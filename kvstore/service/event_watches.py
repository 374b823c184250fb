"""Watchers of events: each waits for its own events, outside the store's mutex."""

from collections.abc import Callable
from threading import Event, Lock
from typing import NamedTuple

from kvstore.core import Identity, PrefixCache
from kvstore.core.values.event_log import EventBatch, EventWatch
from kvstore.errors import StoreDraining


class ChangePublisher:
    """A list of wake-up callbacks. Thread-safe.

    An announcement says that something changed, not what. Listeners read the store, so two changes
    in one wake-up lose nothing.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._wake_ups: list[Callable[[], None]] = []

    def subscribe(self, wake_up: Callable[[], None]) -> None:
        """Calls ``wake_up`` at each announcement from now on, from any thread.

        ``wake_up`` MUST return at once, and neither raise nor call the store.
        """
        with self._mutex:
            self._wake_ups.append(wake_up)

    def unsubscribe(self, wake_up: Callable[[], None]) -> None:
        """Removes ``wake_up``: no announcement calls it once this returned."""
        with self._mutex:
            self._wake_ups.remove(wake_up)

    def announce(self) -> None:
        """Wakes all listeners."""
        with self._mutex:
            for wake_up in self._wake_ups:
                wake_up()


# Events taken at once at most, to keep the time under the mutex short.
BATCH = 512
# Seconds between two batches for one watcher at least. Most of the cost is that of a batch.
PACE = 0.04


class WatcherEvents:
    """One watcher's events. :meth:`take` is for one thread, the rest for any.

    ``draining`` says whether the store ended the watch. ``remembered`` is how many past events the
    watch began with.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        identity: Identity,
        namespace_id: bytes,
        *,
        history: bool,
        live: bool,
    ) -> None:
        """Made by ``EventWatches.begin``, with its parameters."""
        self.draining = False
        self._cache = cache
        self._mutex = mutex
        self._goes_on = live
        self._due = Event()
        self._ended = Event()
        room = cache.limits.max_waiting_events
        self._watch = EventWatch(identity, namespace_id, room=room, wake=self._due.set)
        with mutex:
            if namespace_id:
                cache.namespace(identity, namespace_id)
            cache.events.begin(self._watch, with_history=history, goes_on=live)
            self.remembered = len(self._watch)

    def take(self) -> EventBatch | None:
        """Waits for events and returns them; returns None once the watch is over.

        Events from before the store ended the watch are returned first.
        """
        if self._goes_on and not self._ended.is_set():
            self._due.wait()
        self._due.clear()
        if self._ended.is_set() and not self.draining:
            return None
        with self._mutex:
            batch = self._watch.take(BATCH)
            if len(self._watch):
                self._due.set()
        more = self._goes_on and not self._ended.is_set()
        return batch if batch.events or more else None

    def pause(self) -> None:
        """Waits a moment for more events, or for the end."""
        if self._goes_on:
            self._ended.wait(PACE)

    def end(self) -> None:
        """Ends the watch for its watcher; can be repeated."""
        self._ended.set()
        self._due.set()

    def forget(self) -> None:
        """Drops all later events; can be repeated."""
        self.end()
        with self._mutex:
            self._cache.events.end(self._watch)


class EventUse(NamedTuple):
    """Counts of events, of events that watchers lost, and of watchers."""

    event_count: int
    lost_count: int
    watcher_count: int


class EventWatches:
    """All watchers of a store. Thread-safe.

    ``mutex`` is the store's; it guards ``cache``. ``require_open`` raises StoreDraining if the
    store takes no new work.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, require_open: Callable[[], None]) -> None:
        self._cache = cache
        self._mutex = mutex
        self._require_open = require_open
        self._state = Lock()
        self._closed = False
        self._watchers: set[WatcherEvents] = set()

    def begin(
        self, identity: Identity, namespace_id: bytes = b"", *, history: bool, live: bool = True
    ) -> WatcherEvents:
        """Returns a watch of all events from now on, until :meth:`forget`.

        It covers what ``identity`` may see, or one namespace. With ``history`` the remembered
        events come first; without ``live`` nothing else comes. Raises NamespaceNotFound,
        QuotaExceeded or StoreDraining.
        """
        self._require_open()
        watcher = WatcherEvents(
            self._cache, self._mutex, identity, namespace_id, history=history, live=live
        )
        with self._state:
            self._watchers.add(watcher)
            closed = self._closed
        if closed:
            self.forget(watcher)
            raise StoreDraining
        return watcher

    def forget(self, watcher: WatcherEvents) -> None:
        """Ends a watch, on behalf of anyone; can be repeated."""
        watcher.forget()
        with self._state:
            self._watchers.discard(watcher)

    def use(self) -> EventUse:
        """Returns counts of events and watchers."""
        log = self._cache.events
        with self._state:
            return EventUse(log.count, log.lost_count, len(self._watchers))

    def close(self) -> None:
        """Ends all watches and refuses new ones. Does not wait."""
        with self._state:
            self._closed = True
            left = list(self._watchers)
        for each in left:
            each.draining = True
            each.end()
