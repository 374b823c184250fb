"""A few lanes to a store, one call after another on each; where there is none, there is gRPC."""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Condition, Lock

from kvstore_client.calls.deadlines import Backoff, Deadline
from kvstore_client.calls.lane import Lane
from kvstore_client.errors import StoreError, StoreRefused, StoreTimedOut, StoreUnavailable

# What a lease declares, and a store that has lanes offers.
FEATURE = "hot_lane"
# An engine's thread, the one that gives back, and the one that renews; more threads than
# that call over gRPC meanwhile.
MOST = 4
# Seconds to open one, which takes less than a millisecond where the store is well.
OPENING = 0.25
# Seconds without lanes after one broke, doubled while they go on breaking.
FIRST_REST, LONGEST_REST = 1.0, 30.0
# Posted calls of a lane whose answers were not read. An answer of theirs has some bytes.
MOST_UNREAD = 8

_logger = logging.getLogger(__name__)


class LanePool:
    """Makes calls over lanes that it opens as they are needed. Any thread may use it.

    ``opening`` opens one within some seconds, or raises ``StoreError``.
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
        # The last one used is the next to be: one thread alone keeps to one.
        self._idle: list[Lane] = []
        self._all: set[Lane] = set()
        self._coming = 0
        self._rests_until = 0.0
        self._backoff = Backoff(FIRST_REST, LONGEST_REST)
        self._closed = False

    def call(
        self, method: str, request: Sequence[bytes], timeout: float, *, in_order: bool = False
    ) -> bytes | None:
        """Returns a method's response; None where the call is to be made over gRPC.

        That is so also after a lane broke, when the call may have been made: each that
        is made over lanes may be repeated. With ``in_order`` all that was posted before
        is done when the store takes it up. Raises ``StoreRefused``, or ``StoreTimedOut``
        after ``timeout`` seconds.
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
        told: Callable[[bool], None],
    ) -> bool:
        """Have a call made whose answer nobody waits for; False where no lane takes it at once.

        Its answer is read before that of the lane's next call, or by :meth:`collect`.
        ``told`` is called once, on whichever thread reads it or finds the lane broken,
        with whether it succeeded. It MUST NOT wait.
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
                # Told of from here on, also where it fails.
                posted = True
                posted = lane.post(method, request, timeout, told)
            whole = True
        except StoreError as error:
            _logger.info("lane_broken", extra={"reason": str(error)})
        finally:
            self._leave(lane, whole=whole)
        return posted

    def collect(self, seconds: float = 0.0) -> None:
        """Reads answers to what was posted: those that are there, or come within ``seconds``.

        Of lanes that are in use whoever uses them does. A lane whose oldest answer is
        late breaks.
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
        """Ends all lanes, and calls under way; none is opened any more. Can be repeated."""
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
        """Returns a lane that nobody uses; None where there is none to be had."""
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
        """Wait until other lanes' posted calls until now are answered; return the seconds left."""
        with self._mutex:
            wanted = {each: each.posted_count for each in self._all if each is not own}
            wanted = {each: count for each, count in wanted.items() if each.read_count < count}
        if not wanted:
            return timeout
        deadline = Deadline(timeout)
        if own is not None:
            # First, for somebody may wait for these meanwhile.
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
                    # Whoever uses it reads them, or finds it broken.
                    self._waiting_count += 1
                    try:
                        self._returned.wait(left)
                    finally:
                        self._waiting_count -= 1
                    continue
                self._idle.remove(lane)
            self._collect(lane, left)

    def _collect(self, lane: Lane, seconds: float) -> None:
        """Reads a lane's answers, of which it may break, and put it back."""
        whole = False
        try:
            lane.collect(seconds)
            whole = True
        except StoreError as error:
            _logger.info("lane_broken", extra={"reason": str(error)})
        finally:
            self._leave(lane, whole=whole)

    def _leave(self, lane: Lane, *, whole: bool, well: bool = False) -> None:
        """Let others use a lane, or close it where it broke; ``well``: it just answered a call."""
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
        """Uses none for a while: what broke one may have broken others."""
        self._rests_until = self._clock() + self._backoff.delay()
