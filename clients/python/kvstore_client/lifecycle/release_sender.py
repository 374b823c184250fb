"""Sends a session's releases to the store, without blocking the caller."""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from threading import Condition, Event, Thread
from typing import NamedTuple, TypeAlias

from kvstore_client.calls.deadlines import Backoff
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.errors import StoreRefused, StoreUnavailable


class Returned(NamedTuple):
    """Holds to release, with their numbers, or unmapped extents. ``last`` revokes the lease."""

    numbers: tuple[int, ...] = ()
    pin_ids: Sequence[int] = ()
    reservation_ids: Sequence[int] = ()
    extent_ids: Sequence[int] = ()
    last: bool = False


@dataclass
class Batch:
    """Releases that the thread sends together."""

    numbers: list[int] = field(default_factory=list)
    pin_ids: list[int] = field(default_factory=list)
    reservation_ids: list[int] = field(default_factory=list)
    extent_ids: list[int] = field(default_factory=list)
    last: bool = False

    def add(self, item: Returned) -> None:
        """Appends a release."""
        self.numbers.extend(item.numbers)
        self.pin_ids.extend(item.pin_ids)
        self.reservation_ids.extend(item.reservation_ids)
        self.extent_ids.extend(item.extent_ids)
        self.last = item.last


Post: TypeAlias = Callable[[Sequence[int], float, Callable[[bool], None]], bool]

_logger = logging.getLogger(__name__)

# Seconds until the thread reads the answers on idle lanes.
LOOK = 0.05
# One call aborts this many reservations without slots, or those of ``LOOK`` seconds.
MOST_LATER = 16


class ReleaseSender:
    """Sends releases on the caller's thread over an idle lane, or else on its own thread.

    The caller does not wait: the lane's next user reads the answer, or the sender's thread
    does soon after. If no lane is idle, or a lane breaks, the release goes into a queue. The
    thread sends all queued releases together, in as few calls as the store's limits allow.

    Releases are idempotent, so each is sent until the store answers, or until
    :meth:`abandon`. After ``last`` the thread revokes the lease in the same way. It calls
    ``closed`` and ends once no extent that was given up is still mapped.

    Any thread may use it. Only the thread, :meth:`flush`, :meth:`settle` and :meth:`join`
    wait for the store.
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
        """``lingering`` returns the extents that were given up and are not reported yet."""
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
        self._count = 0
        # Unanswered releases by number: True on a lane, False in the thread's queue.
        self._open: dict[int, bool] = {}
        self._later: list[Returned] = []
        self._watching = False
        self._look_at = 0.0
        self._retry = Event()
        self._abandoned = False
        self._ended = Event()
        self._thread = Thread(target=self._run, name="kvstore-release", daemon=True)
        self._thread.start()

    def give_back(
        self,
        *,
        pin_ids: Sequence[int] = (),
        reservation_ids: Sequence[int] = (),
        slotless_ids: Sequence[int] = (),
    ) -> None:
        """Releases pins and aborts reservations. Those without slots may wait for others."""
        if pin_ids:
            self._send_now(self._numbered(Returned(pin_ids=pin_ids)))
        if reservation_ids:
            self._send_now(self._numbered(Returned(reservation_ids=reservation_ids)))
        if slotless_ids:
            item = self._numbered(Returned(reservation_ids=slotless_ids))
            with self._state:
                self._later.append(item)
            if len(self._later) < MOST_LATER:
                self._watch()
            else:
                self._send_later()

    def _numbered(self, item: Returned) -> Returned:
        with self._state:
            self._count += 1
            self._open[self._count] = True
            return item._replace(numbers=(self._count,))

    def _send_now(self, item: Returned) -> None:
        """Sends pins or reservations over a lane, or queues them for the thread."""
        ids: Sequence[int] = item.pin_ids or item.reservation_ids
        post: Post = self._calls.post_release if item.pin_ids else self._calls.post_abort
        postable = len(ids) <= self._max_batch_size and not self._abandoned
        if postable and post(ids, self._call_timeout, partial(self._read, item)):
            self._watch()
        else:
            self._put(item)

    def _send_later(self) -> None:
        """Aborts the reservations without slots that waited for others."""
        with self._state:
            items, self._later = self._later, []
        if items:
            numbers = tuple(number for each in items for number in each.numbers)
            ids = [each_id for each in items for each_id in each.reservation_ids]
            self._send_now(Returned(numbers, reservation_ids=ids))

    def _put(self, item: Returned) -> None:
        with self._state:
            self._open.update(dict.fromkeys(item.numbers, False))
            self._queue.put(item)

    def _read(self, item: Returned, succeeded: bool) -> None:  # noqa: FBT001  # a lane's callback
        """Notes the result of a release that was sent over a lane."""
        if succeeded:
            self._answered(item.numbers)
        else:
            self._put(item)

    def _answered(self, numbers: Iterable[int]) -> None:
        with self._state:
            for number in numbers:
                self._open.pop(number, None)
            self._state.notify_all()

    def unmapped(self, extent_id: int) -> None:
        """Reports to the store that an extent is unmapped. Never waits."""
        self._queue.put(Returned(extent_ids=(extent_id,)))

    def finish(self) -> None:
        """Revokes the lease after everything else, and ends. Does not wait."""
        self._queue.put(Returned(last=True))

    def flush(self, timeout: float) -> bool:
        """Waits until all earlier releases are answered; returns False if they are not."""
        end = time.monotonic() + timeout
        self._send_later()
        self._calls.collect(timeout)
        return self._wait(max(0.0, end - time.monotonic()), on_lanes=True)

    def settle(self, timeout: float, given_up: Callable[[], bool]) -> bool:
        """Waits as :meth:`flush` does, but only for releases that are on no lane.

        A call over a lane comes after the releases on it. The wait ends once ``given_up``
        returns True, which it is asked again at each :meth:`wake`.
        """
        return not self._open or self._wait(timeout, given_up, on_lanes=False)

    def _wait(
        self, timeout: float, given_up: Callable[[], bool] = lambda: False, *, on_lanes: bool
    ) -> bool:
        with self._state:
            wanted = self._count

            def done() -> bool:
                return not any(
                    number <= wanted and (on_lanes or not on_lane)
                    for number, on_lane in self._open.items()
                )

            self._state.wait_for(lambda: self._abandoned or given_up() or done(), timeout)
            return done()

    def wake(self) -> None:
        """Makes the waits of :meth:`settle` ask ``given_up`` again."""
        with self._state:
            self._state.notify_all()

    def prompt(self) -> None:
        """Retries now, because the store answers."""
        self._retry.set()

    def abandon(self) -> None:
        """Sends nothing more, because the lease's store is gone or this process ends."""
        with self._state:
            self._abandoned = True
            self._state.notify_all()
        self._retry.set()
        self.finish()

    def join(self, timeout: float) -> bool:
        """Waits after :meth:`finish` until the lease is revoked; returns whether it is."""
        return self._ended.wait(timeout)

    def _run(self) -> None:
        last = False
        while not last:
            last = self._deliver(self._take())
        if not self._abandoned:
            # Before the lease is revoked, releases on lanes are answered or come back.
            self._send_later()
            self._calls.collect(self._call_timeout)
            while not self._queue.empty():
                self._deliver(self._take())
        self._send("lease", partial(self._calls.revoke, self._call_timeout))
        self._outlast_views()
        self._closed()
        self._ended.set()

    def _deliver(self, batch: Batch) -> bool:
        """Sends a batch; returns whether it was the last."""
        self._tell(batch.extent_ids)
        for part in self._parts(batch.pin_ids):
            self._send("pins", partial(self._calls.release, part, self._call_timeout))
        for part in self._parts(batch.reservation_ids):
            self._send("holds", partial(self._calls.abort, part, self._call_timeout))
        if not self._abandoned:
            self._answered(batch.numbers)
        return batch.last

    # Releases on lanes. Their sender calls _watch, so that the thread reads the answers.

    def _watch(self) -> None:
        if self._watching:
            return
        with self._state:
            self._watching, self._look_at = True, time.monotonic() + LOOK
            self._queue.put(Returned())

    def _look(self) -> None:
        """Reads the answers on idle lanes, and aborts the reservations that waited."""
        self._send_later()
        self._calls.collect()
        with self._state:
            self._watching, self._look_at = any(self._open.values()), time.monotonic() + LOOK

    def _next(self) -> Returned:
        while True:
            try:
                if not self._watching:
                    return self._queue.get()
                return self._queue.get(timeout=max(0.0, self._look_at - time.monotonic()))
            except Empty:
                self._look()

    def _outlast_views(self) -> None:
        """Reports unmapped extents until all that were given up are unmapped."""
        while not self._abandoned and (self._has_untold() or not self._queue.empty()):
            self._ended.set()
            self._tell(self._take().extent_ids)

    def _has_untold(self) -> bool:
        # A reported extent may linger for a moment, until its unmapping thread continues.
        return not self._told.issuperset(self._lingering())

    def _tell(self, extent_ids: list[int]) -> None:
        if extent_ids:
            self._tell_unmapped(extent_ids)
            self._told.update(extent_ids)

    def _take(self) -> Batch:
        batch = Batch()
        batch.add(self._next())
        while not batch.last and not self._queue.empty():
            batch.add(self._queue.get())
        return batch

    def _parts(self, ids: Sequence[int]) -> Iterable[Sequence[int]]:
        for start in range(0, len(ids), self._max_batch_size):
            yield ids[start : start + self._max_batch_size]

    def _send(self, what: str, call: Callable[[], None]) -> None:
        """Repeats a call until the store answers it."""
        while not self._abandoned:
            self._retry.clear()
            try:
                call()
            except StoreUnavailable:
                self._retry.wait(self._backoff.delay())
            except StoreRefused as error:
                if error.retry_after_s:  # refused for now, so it must be sent again
                    with self._state:
                        self._state.wait_for(lambda: self._abandoned, error.retry_after_s)
                    continue
                # Released already: by another epoch, or with the end of the lease.
                _logger.info("release_refused", extra={"what": what, "reason": error.reason})
                return
            except Exception:  # without this thread nothing would be released any more
                _logger.exception("release_failed", extra={"what": what})
                self._retry.wait(self._backoff.delay())
            else:
                self._backoff.reset()
                return
