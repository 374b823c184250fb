"""A few lanes to a store, one call at a time on each; where there is none, there is gRPC."""

import logging
import time
from collections.abc import Callable, Sequence
from threading import Lock

from kvstore_client.backoff import Backoff
from kvstore_client.errors import StoreError, StoreRefused, StoreTimedOut, StoreUnavailable
from kvstore_client.hot_lane import HotLane

# What a lease declares, and a store that has lanes offers.
FEATURE = "hot_lane"
# An engine's thread, the one that gives back, and the one that renews; more threads than
# that call over gRPC meanwhile.
MOST = 4
# Seconds to open one, which takes less than a millisecond where the store is well.
OPENING = 0.25
# Seconds without lanes after one broke, doubled while they go on breaking.
FIRST_REST, LONGEST_REST = 1.0, 30.0

_logger = logging.getLogger(__name__)


class HotLanes:
    """Makes calls over lanes that it opens as they are needed. Any thread may use it.

    ``opening`` opens one within some seconds, or raises ``StoreError``.
    """

    def __init__(
        self,
        opening: Callable[[float], HotLane],
        *,
        most: int = MOST,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._opening = opening
        self._most = most
        self._clock = clock
        self._mutex = Lock()
        # The last one used is the next to be: one thread alone keeps to one.
        self._idle: list[HotLane] = []
        self._all: set[HotLane] = set()
        self._coming = 0
        self._rests_until = 0.0
        self._backoff = Backoff(FIRST_REST, LONGEST_REST)
        self._closed = False

    def call(self, method: str, request: Sequence[bytes], timeout: float) -> bytes | None:
        """Return a method's response; None where the call is to be made over gRPC.

        That is so also after a lane broke, when the call may have been made: each that
        is made over lanes may be repeated. Raises ``StoreRefused``, or ``StoreTimedOut``
        after ``timeout`` seconds.
        """
        lane = self._take(timeout)
        if lane is None:
            return None
        whole = False
        try:
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
            self._put_back(lane, whole=whole)
        return answer

    def close(self) -> None:
        """End all lanes, and calls under way; none is opened any more. Can be repeated."""
        with self._mutex:
            self._closed = True
            idle, self._idle = self._idle, []
            for lane in self._all:
                lane.shut()
            self._all.difference_update(idle)
        for lane in idle:
            lane.close()

    def _take(self, timeout: float) -> HotLane | None:
        """Return a lane that nobody uses; None where there is none to be had."""
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

    def _put_back(self, lane: HotLane, *, whole: bool) -> None:
        with self._mutex:
            if whole:
                self._rests_until = 0.0
                self._backoff.reset()
            else:
                self._rest()
            if whole and not self._closed:
                self._idle.append(lane)
                return
            self._all.discard(lane)
        lane.close()

    def _rest(self) -> None:
        """Use none for a while: what broke one may have broken others."""
        self._rests_until = self._clock() + self._backoff.delay()
