"""A few lanes to a store, with one call at a time on each. Without a free lane gRPC is used."""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Condition, Lock

from kvstore_client.calls.deadlines import Backoff, Deadline
from kvstore_client.calls.lane import Lane
from kvstore_client.errors import StoreError, StoreRefused, StoreTimedOut, StoreUnavailable

# The feature that a lease declares and a store with lanes offers.
FEATURE = "hot_lane"
# Enough for an engine's thread, the release thread and the renewing thread. Further threads
# call over gRPC.
MOST = 4
# Seconds to open a lane. A healthy store takes less than a millisecond.
OPENING = 0.25
# Seconds without lanes after one broke, doubled while lanes keep breaking.
FIRST_REST, LONGEST_REST = 1.0, 30.0
# The most unread answers to posted calls on a lane. Each has a few bytes.
MOST_UNREAD = 8

_logger = logging.getLogger(__name__)


class LanePool:
    """Makes calls over lanes that it opens on demand. Any thread may use it.

    ``opening`` opens a lane within the given seconds, or raises ``StoreError``.
    """

    def __init__(
        self,
        opening: Callable[[float], Lane],
        *,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opening = opening
        self._most = most
        self._clock = clock
        self._mutex = Lock()
        self._returned = Condition(self._mutex)
        self._waiting_count = 0
        # A stack: a single thread keeps using the same lane.
        self._idle: list[Lane] = []
        self._all: set[Lane] = set()
        self._coming = 0
        self._rests_until = 0.0
        self._backoff = Backoff(FIRST_REST, LONGEST_REST)
        self._closed = False

    def call(
        self, method: str, request: Sequence[bytes], timeout: float, *, in_order: bool = False
    ) -> bytes | None:
        """Returns a method's response, or None if the caller has to use gRPC.

        Returns None also after a lane broke. The store may have run the call then, but
        every call over lanes can be repeated. With ``in_order`` all earlier posted calls
        are done before the store starts this one. Raises ``StoreRefused``, or
        ``StoreTimedOut`` after ``timeout`` seconds.
        """
        lane = self._take(timeout)
        whole = False
        try:
            if in_order and (lane is None or len(self._all) > 1):
                timeout = self._settled(lane, timeout)
            if lane is None:
                return None
            answer = lane.call(method, request, timeout)
            whole = True
        except StoreRefused:
            whole = True
            raise
        except StoreTimedOut:
            raise
        except StoreUnavailable as error:
            _logger.info("lane_broken", extra={"reason": str(error)})
            return None
        finally:
            if lane is not None:
                self._leave(lane, whole=whole, well=True)
        return answer

    def post(
        self,
        method: str,
        request: Sequence[bytes],
        timeout: float,
        on_result: Callable[[bool], None],
    ) -> bool:
        """Sends a call without waiting for its answer. Returns False if no lane is free.

        The lane's next call reads the answer first, or :meth:`collect` does. The thread
        that reads it, or finds the lane broken, calls ``on_result`` once with the success.
        ``on_result`` MUST NOT wait.
        """
        with self._mutex:
            if not self._idle or self._rests_until:
                return False
            lane = self._idle.pop()
        posted = whole = False
        try:
            if lane.unread_count >= MOST_UNREAD:
                lane.collect()
            if lane.unread_count < MOST_UNREAD:
                # From here on ``on_result`` gets the result, also of a failure.
                posted = True
                posted = lane.post(method, request, timeout, on_result)
            whole = True
        except StoreError as error:
            _logger.info("lane_broken", extra={"reason": str(error)})
        finally:
            self._leave(lane, whole=whole)
        return posted

    def collect(self, seconds: float = 0.0) -> None:
        """Reads answers to posted calls that arrived or arrive within ``seconds``.

        A lane in use is read by its user. A lane whose oldest answer is late breaks.
        """
        deadline = Deadline(seconds)
        seen: set[Lane] = set()
        while True:
            with self._mutex:
                rest = (each for each in self._idle if each.unread_count and each not in seen)
                lane = next(rest, None)
                if lane is None:
                    return
                self._idle.remove(lane)
            seen.add(lane)
            self._collect(lane, deadline.left())

    def close(self) -> None:
        """Ends all lanes and their calls, and opens no more lanes. Can be repeated."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            for lane in self._all:
                lane.shut()
            self._all.difference_update(idle)
        for lane in idle:
            lane.close()
            lane.forfeit()

    def _take(self, timeout: float) -> Lane | None:
        """Returns a free lane, opened if needed, or None if none is available."""
        with self._mutex:
            if self._closed or (self._rests_until and self._clock() < self._rests_until):
                return None
            if self._idle:
                return self._idle.pop()
            if len(self._all) + self._coming >= self._most:
                return None
            self._coming += 1
        lane = None
        try:
            lane = self._opening(min(OPENING, timeout / 2))
        except StoreError as error:
            _logger.info("lane_not_opened", extra={"reason": str(error)})
        finally:
            with self._mutex:
                self._coming -= 1
                if lane is None:
                    self._rest()
                else:
                    self._all.add(lane)
        return lane

    def _settled(self, own: Lane | None, timeout: float) -> float:
        """Waits until other lanes' posted calls are answered; returns the seconds left."""
        with self._mutex:
            wanted = {each: each.posted_count for each in self._all if each is not own}
            wanted = {each: count for each, count in wanted.items() if each.read_count < count}
        if not wanted:
            return timeout
        deadline = Deadline(timeout)
        if own is not None:
            # First, because another thread may wait for these answers.
            own.collect(deadline.remaining())
        while True:
            with self._mutex:
                if self._waiting_count:
                    self._returned.notify_all()
                wanted = {
                    each: count
                    for each, count in wanted.items()
                    if each in self._all and each.read_count < count
                }
                lane = next((each for each in wanted if each in self._idle), None)
                left = deadline.remaining()
                if not wanted:
                    return left
                if lane is None:
                    # The lane's user reads the answers, or finds the lane broken.
                    self._waiting_count += 1
                    try:
                        self._returned.wait(left)
                    finally:
                        self._waiting_count -= 1
                    continue
                self._idle.remove(lane)
            self._collect(lane, left)

    def _collect(self, lane: Lane, seconds: float) -> None:
        """Reads a lane's answers and returns the lane to the pool, or closes it if it broke."""
        whole = False
        try:
            lane.collect(seconds)
            whole = True
        except StoreError as error:
            _logger.info("lane_broken", extra={"reason": str(error)})
        finally:
            self._leave(lane, whole=whole)

    def _leave(self, lane: Lane, *, whole: bool, well: bool = False) -> None:
        """Returns a lane to the pool, or closes a broken one. ``well``: it answered a call."""
        with self._mutex:
            if not whole:
                self._rest()
            elif well and self._rests_until:
                self._rests_until = 0.0
                self._backoff.reset()
            if self._waiting_count:
                self._returned.notify_all()
            if whole and not self._closed:
                self._idle.append(lane)
                return
            self._all.discard(lane)
        lane.close()
        lane.forfeit()

    def _rest(self) -> None:
        """Stops using lanes for a while: the same cause may have broken others."""
        self._rests_until = self._clock() + self._backoff.delay()
