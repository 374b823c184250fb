"""Sends what a session gives back, in the background, until the store has it."""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Condition, Event, Thread

from kvstore_client.backoff import Backoff
from kvstore_client.errors import StoreRefused, StoreUnavailable
from kvstore_client.lease_calls import LeaseCalls

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Returned:
    """Holds and extents that are given back. ``last`` is the lease itself."""

    pin_ids: Sequence[int] = ()
    reservation_ids: Sequence[int] = ()
    extent_ids: Sequence[int] = ()
    last: bool = False


@dataclass
class _Batch:
    pin_ids: list[int] = field(default_factory=list)
    reservation_ids: list[int] = field(default_factory=list)
    extent_ids: list[int] = field(default_factory=list)
    holds: int = 0
    last: bool = False

    def add(self, item: Returned) -> None:
        self.pin_ids.extend(item.pin_ids)
        self.reservation_ids.extend(item.reservation_ids)
        self.extent_ids.extend(item.extent_ids)
        self.holds += bool(item.pin_ids or item.reservation_ids)
        self.last = item.last


class ReleaseSender:
    """A queue and a thread: releases reach the store in order, those that wait in one call.

    They can be repeated, so each is sent until the store answered, or until
    :meth:`abandon`. After ``last`` the lease is revoked in the same way, and the
    thread ends by calling ``closed``, once nothing that was given up is mapped any
    more. Any thread may use it; nothing here waits
    for the store but the thread, :meth:`flush` and :meth:`join`.
    """

    def __init__(
        self,
        calls: LeaseCalls,
        *,
        call_timeout: float,
        backoff: Backoff,
        max_batch_size: int,
        tell_unmapped: Callable[[list[int]], None],
        closed: Callable[[], None],
        lingering: Callable[[], Collection[int]] = tuple,
    ) -> None:
        """``lingering`` are extents that were given up: none is left out before it is told of."""
        self._calls = calls
        self._call_timeout = call_timeout
        self._backoff = backoff
        self._max_batch_size = max_batch_size
        self._tell_unmapped = tell_unmapped
        self._closed = closed
        self._lingering = lingering
        self._told: set[int] = set()
        # Its put may interrupt itself, so an extent's last view may be dropped anywhere.
        self._queue: SimpleQueue[Returned] = SimpleQueue()
        self._state = Condition()
        self._put_count = 0
        self._sent_count = 0
        self._retry = Event()
        self._abandoned = False
        self._ended = Event()
        self._thread = Thread(target=self._run, name="kvstore-release", daemon=True)
        self._thread.start()

    def give_back(
        self, *, pin_ids: Sequence[int] = (), reservation_ids: Sequence[int] = ()
    ) -> None:
        """Have pins released and reservations ended."""
        if pin_ids or reservation_ids:
            with self._state:
                self._put_count += 1
                self._queue.put(Returned(pin_ids, reservation_ids))

    def unmapped(self, extent_id: int) -> None:
        """Have the store told that an extent is unmapped. Never waits."""
        self._queue.put(Returned(extent_ids=(extent_id,)))

    def finish(self) -> None:
        """Have the lease revoked after everything else, and end."""
        self._queue.put(Returned(last=True))

    def flush(self, timeout: float, given_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until what was given back before this call has been sent; False if it was not.

        Waits no longer once ``given_up``, which is asked again at each :meth:`wake`.
        """
        with self._state:
            wanted = self._put_count
            self._state.wait_for(
                lambda: self._abandoned or given_up() or self._sent_count >= wanted, timeout
            )
            return self._sent_count >= wanted

    def wake(self) -> None:
        """Have those who wait in :meth:`flush` look whether they have given up."""
        with self._state:
            self._state.notify_all()

    def prompt(self) -> None:
        """Try again now: the store is known to answer."""
        self._retry.set()

    def abandon(self) -> None:
        """Send nothing more: the store that granted the lease is gone, or this process goes."""
        with self._state:
            self._abandoned = True
            self._state.notify_all()
        self._retry.set()
        self.finish()

    def join(self, timeout: float) -> bool:
        """Wait until the lease is revoked, after :meth:`finish`; returns whether it is."""
        return self._ended.wait(timeout)

    def _run(self) -> None:
        last = False
        while not last:
            batch = self._take()
            last = batch.last
            self._tell(batch.extent_ids)
            for part in self._parts(batch.pin_ids):
                self._send("pins", partial(self._calls.release, part, self._call_timeout))
            for part in self._parts(batch.reservation_ids):
                self._send("holds", partial(self._calls.abort, part, self._call_timeout))
            with self._state:
                if not self._abandoned:
                    self._sent_count += batch.holds
                    self._state.notify_all()
        self._send("lease", partial(self._calls.revoke, self._call_timeout))
        self._outlast_views()
        self._closed()
        self._ended.set()

    def _outlast_views(self) -> None:
        """Go on telling what is unmapped, while views are kept of what was given up."""
        while not self._abandoned and (self._has_untold() or not self._queue.empty()):
            self._ended.set()
            self._tell(self._take().extent_ids)

    def _has_untold(self) -> bool:
        # Those told of may linger for a moment: whoever unmapped them is about to say so.
        return not self._told.issuperset(self._lingering())

    def _tell(self, extent_ids: list[int]) -> None:
        if extent_ids:
            self._tell_unmapped(extent_ids)
            self._told.update(extent_ids)

    def _take(self) -> _Batch:
        batch = _Batch()
        batch.add(self._queue.get())
        while not batch.last and not self._queue.empty():
            batch.add(self._queue.get())
        return batch

    def _parts(self, ids: Sequence[int]) -> Iterable[Sequence[int]]:
        for start in range(0, len(ids), self._max_batch_size):
            yield ids[start : start + self._max_batch_size]

    def _send(self, what: str, call: Callable[[], None]) -> None:
        """Repeat a call until it is answered."""
        while not self._abandoned:
            self._retry.clear()
            try:
                call()
            except StoreUnavailable:
                self._retry.wait(self._backoff.delay())
            except StoreRefused as error:
                if error.retry_after_s:  # refused for now: it is still to be given back
                    with self._state:
                        self._state.wait_for(lambda: self._abandoned, error.retry_after_s)
                    continue
                # Gone already: another epoch, or a lease that ended with all it held.
                _logger.info("release_refused", extra={"what": what, "reason": error.reason})
                return
            except Exception:  # without this thread nothing would be given back any more
                _logger.exception("release_failed", extra={"what": what})
                self._retry.wait(self._backoff.delay())
            else:
                self._backoff.reset()
                return
