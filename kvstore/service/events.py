"""Who watches what happens: each watcher waits for its own events, outside the store's mutex."""

from collections.abc import Callable
from threading import Event, Lock
from typing import NamedTuple

from kvstore.core import Identity, PrefixCache
from kvstore.core.values.events import EventWatch, Told
from kvstore.errors import StoreDraining


class Announcer:
    """A list of wake-ups. Thread-safe.

    Says that something changed, not what: listeners look at the store, so that
    nothing is lost when two changes make one wake-up.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._wake_ups: list[Callable[[], None]] = []

    def subscribe(self, wake_up: Callable[[], None]) -> None:
        """Have ``wake_up`` called at each announcement, from any thread.

        It MUST return at once, and neither raise nor call the store.
        """
        with self._mutex:
            self._wake_ups.append(wake_up)

    def unsubscribe(self, wake_up: Callable[[], None]) -> None:
        """Never call ``wake_up`` again, once this returned."""
        with self._mutex:
            self._wake_ups.remove(wake_up)

    def announce(self) -> None:
        """Wakes everybody who listens."""
        with self._mutex:
            for wake_up in self._wake_ups:
                wake_up()


# Events taken at once at most: little time under the mutex.
BATCH = 256
# Seconds between two batches for one watcher at least, so that a burst costs a few of them.
PACE = 0.02


class Watching:
    """One watcher's events. :meth:`take` is for one thread, the rest for any.

    ``draining`` says whether the store ended it; ``remembered`` is how many events were there.
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
        """As ``EventWatches.begin``, which makes it."""
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

    def take(self) -> Told | None:
        """Waits for events and returns those that are there; None once it is over.

        What happened before the store ended it is told first.
        """
        if self._goes_on and not self._ended.is_set():
            self._due.wait()
        self._due.clear()
        if self._ended.is_set() and not self.draining:
            return None
        with self._mutex:
            told = self._watch.take(BATCH)
            if len(self._watch):
                self._due.set()
        more = self._goes_on and not self._ended.is_set()
        return told if told.events or more else None

    def pause(self) -> None:
        """Waits a moment, for more to come, or for the end."""
        if self._goes_on:
            self._ended.wait(PACE)

    def end(self) -> None:
        """Have nothing more told; can be repeated."""
        self._ended.set()
        self._due.set()

    def forget(self) -> None:
        """Hands it nothing more; can be repeated."""
        self.end()
        with self._mutex:
            self._cache.events.end(self._watch)


class EventUse(NamedTuple):
    """How many events there were, how many watchers lost of them, and how many watch."""

    event_count: int
    lost_count: int
    watcher_count: int


class EventWatches:
    """All watchers of a store. Thread-safe.

    ``mutex`` is the store's, under which ``cache`` may be used; ``require_open`` raises
    StoreDraining where nothing new may begin.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, require_open: Callable[[], None]) -> None:
        self._cache = cache
        self._mutex = mutex
        self._require_open = require_open
        self._state = Lock()
        self._closed = False
        self._watching: set[Watching] = set()

    def begin(
        self, identity: Identity, namespace_id: bytes = b"", *, history: bool, live: bool = True
    ) -> Watching:
        """Returns what tells of what happens from now on, until :meth:`forget`.

        Of what ``identity`` may see, or of one namespace; with ``history`` of what is
        remembered first, and without ``live`` of nothing else. Raises NamespaceNotFound,
        QuotaExceeded or StoreDraining.
        """
        self._require_open()
        watching = Watching(
            self._cache, self._mutex, identity, namespace_id, history=history, live=live
        )
        with self._state:
            self._watching.add(watching)
            closed = self._closed
        if closed:
            self.forget(watching)
            raise StoreDraining
        return watching

    def forget(self, watching: Watching) -> None:
        """Ends a watch, whoever wants it; can be repeated."""
        watching.forget()
        with self._state:
            self._watching.discard(watching)

    def use(self) -> EventUse:
        """Returns how much is told."""
        log = self._cache.events
        with self._state:
            return EventUse(log.count, log.lost_count, len(self._watching))

    def close(self) -> None:
        """Ends all watches, and begin no other. Does not wait."""
        with self._state:
            self._closed = True
            left = list(self._watching)
        for each in left:
            each.draining = True
            each.end()
