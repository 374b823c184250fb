"""The threads that serve all lanes; one that says nothing costs none."""

import os
import select
import socket
from collections import Counter
from contextlib import suppress
from threading import Lock, Thread
from typing import Self

import structlog

from kvstore.errors import KVStoreError, QuotaExceeded
from kvstore.rpc.attach.table import ConnectionTable
from kvstore.rpc.fair_queue import Turns
from kvstore.rpc.lane.calls import METHODS, LaneCalls
from kvstore.rpc.lane.connection import HotLane, Party
from kvstore.rpc.wire import status
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1.attach_pb2 import LaneAnswer

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# What a lease declares, and a server that has lanes offers.
FEATURE = "hot_lane"
# Calls take turns at the store's mutex; some may be reading pages, and the others go on.
THREAD_COUNT = 8
MAX_LANES = 256
# A process makes few calls at the same time; whoever makes more of them has gRPC besides.
MAX_LANES_OF_PROCESS = 8
# Calls that came behind one whose answer is empty are served at once where nobody stands in
# line, and the empty answers sent with the last one.
MOST_AT_ONCE = 8
# A lane is watched for one call at a time. Whoever hung up wants no answer any more.
EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR


class HotLanes:
    """Serves lanes from ``start`` to ``close``, or in a ``with`` block, tenants taking turns.

    ``take`` and ``end`` are the attach server's; ``look`` is the watchdog's. All
    threads wait together for whatever comes next, and whichever wakes reads the call,
    makes it, and answers.
    """

    methods = METHODS

    def __init__(
        self,
        store: KVStore,
        credentials: Credentials,
        clock: Clock,
        *,
        thread_count: int = THREAD_COUNT,
        max_lanes: int = MAX_LANES,
    ) -> None:
        self.failure_count = 0
        self.last_tick = clock()
        self._clock = clock
        self._max_body_bytes = store.limits.max_message_bytes
        self._calls = LaneCalls(store, credentials, clock)
        self._identity_of = credentials.identity_of
        self._turns: Turns[HotLane] = Turns(thread_count)
        self._mutex = Lock()
        self._table: ConnectionTable[HotLane] = ConnectionTable(max_lanes, "lanes")
        self._lanes: dict[int, HotLane] = {}
        self._of_process: Counter[int] = Counter()
        self._stopping = False
        self._errand_under_way = False
        self._epoll = select.epoll()
        self._stop_event = os.eventfd(0, os.EFD_CLOEXEC)
        self._errand = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._stop_event, select.EPOLLIN)
        self._epoll.register(self._errand, EVENTS)
        self._threads = [
            Thread(target=self._run, name=f"kvstore-lane-{number}", daemon=True)
            for number in range(thread_count)
        ]

    def start(self) -> None:
        """Starts the threads; once."""
        for each in self._threads:
            each.start()

    def close(self) -> None:
        """Let calls under way end, and end all lanes; once, after ``start``."""
        self._stopping = True
        os.eventfd_write(self._stop_event, 1)
        for each in self._threads:
            each.join()
        for lane in list(self._lanes.values()):
            self._drop(lane)
        self._epoll.close()
        os.close(self._stop_event)
        os.close(self._errand)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # The watchdog's.

    def is_alive(self) -> bool:
        """Returns whether all threads run."""
        return all(each.is_alive() for each in self._threads)

    def look(self) -> None:
        """Sends an errand, unless one is under way: ``last_tick`` is when one was taken up last.

        It waits for a thread as a call does.
        """
        if not self._errand_under_way and not self._stopping:
            self._errand_under_way = True
            os.eventfd_write(self._errand, 1)

    # The attach server's.

    def require_room(self, party: Party) -> None:
        """Raises :class:`QuotaExceeded` where another lane would be one too many."""
        with self._mutex:
            if self._of_process[party.process_id] >= MAX_LANES_OF_PROCESS:
                raise QuotaExceeded(quota="lanes_of_process", maximum=MAX_LANES_OF_PROCESS)
            self._table.require_room(party.uid)

    def take(self, connection: socket.socket, party: Party) -> None:
        """Serves a connection from now on; there MUST be room. It is closed here."""
        lane = HotLane(connection, party, max_body_bytes=self._max_body_bytes)
        with self._mutex:
            self._table.add(lane, party.uid)
            self._table.welcome(lane)
            self._of_process[party.process_id] += 1
            self._lanes[lane.descriptor] = lane
            self._epoll.register(lane.descriptor, EVENTS)

    def end(self, process_id: int) -> None:
        """Ends the lanes of a process that died or has no lease any more."""
        with self._mutex:
            for lane in self._lanes.values():
                if lane.party.process_id == process_id:
                    with suppress(OSError):
                        lane.shut()

    # The threads'.

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._round()
            except Exception:
                log.exception("lane_failed", failure_count=self._count_failure())

    def _count_failure(self) -> int:
        with self._mutex:
            self.failure_count += 1
            return self.failure_count

    def _round(self) -> None:
        """Waits for a lane that has a call, and serve whose turn it is."""
        for descriptor, events in self._epoll.poll(maxevents=1):
            if descriptor == self._stop_event:
                return
            if descriptor == self._errand:
                self._run_errand()
                continue
            lane = self._lanes[descriptor]
            if events & HUNG_UP:
                self._drop(lane)
                continue
            lane.came_at = self._clock()
            lane.identity = self._identity_of(lane.party.uid)
            turn = self._turns.enter(lane.identity.tenant, lane)
            while turn is not None:
                tenant, lane = turn
                try:
                    self._serve(lane)
                except Exception:
                    # Who stands in line behind it is served all the same.
                    log.exception("lane_failed", failure_count=self._count_failure())
                finally:
                    turn = self._turns.end(tenant)

    def _run_errand(self) -> None:
        os.eventfd_read(self._errand)
        self.last_tick = self._clock()
        self._errand_under_way = False
        self._epoll.modify(self._errand, EVENTS)

    def _serve(self, lane: HotLane) -> None:
        try:
            answer = self._calls.answer(lane, lane.read())
            for _ in range(MOST_AT_ONCE):
                # What has something to say is waited for; behind what has not more may come.
                if answer[1] or self._turns.has_line or not lane.has_next():
                    break
                # Sent one by one they would wake who waits for the last.
                lane.hold(*answer)
                lane.came_at = self._clock()
                lane.identity = self._identity_of(lane.party.uid)
                answer = self._calls.answer(lane, lane.read())
            lane.write(*answer)
        except KVStoreError as error:
            # What comes after it cannot be told from what it was.
            with suppress(OSError):
                lane.write(LaneAnswer(status=status.to_status(error)).SerializeToString(), b"")
            self._drop(lane)
        except (EOFError, OSError):
            self._drop(lane)
        except Exception:
            self._drop(lane)
            raise
        else:
            self._epoll.modify(lane.descriptor, EVENTS)

    def _drop(self, lane: HotLane) -> None:
        with self._mutex:
            self._table.discard(lane)
            self._of_process[lane.party.process_id] -= 1
            if not self._of_process[lane.party.process_id]:
                del self._of_process[lane.party.process_id]
            del self._lanes[lane.descriptor]
            self._epoll.unregister(lane.descriptor)
            lane.close()
