"""The threads that serve all lanes; an idle lane costs none."""

import os
import select
import socket
from collections import Counter
from contextlib import suppress
from threading import Lock, Thread
from typing import NamedTuple, NoReturn, Self

import structlog
from google.protobuf.message import DecodeError

from kvstore.core import Limits
from kvstore.errors import InvalidField, KVStoreError, QuotaExceeded
from kvstore.rpc.attach.table import ConnectionTable
from kvstore.rpc.fair_queue import FairQueue
from kvstore.rpc.lane.connection import EMPTY_SEQUENCE, Frame, HotLane, Party
from kvstore.rpc.pipeline import Call, Method, Pipeline, method_of
from kvstore.rpc.servicers.lease import LeaseServicer
from kvstore.rpc.servicers.prefix_cache import PrefixCacheServicer
from kvstore.rpc.wire import status
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1.attach_pb2 import LaneAnswer, LaneCall

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The feature that a lease declares, and that a server with lanes offers.
FEATURE = "hot_lane"
# Calls wait for the store's mutex. Some may be reading pages while the others go on.
THREAD_COUNT = 8
MAX_LANES = 256
# A process makes few calls at the same time. One that makes more of them has gRPC besides.
MAX_LANES_OF_PROCESS = 8
# Calls that arrived behind one whose answer is empty are served at once if no other lane waits,
# and the empty answers are sent with the last one.
MOST_AT_ONCE = 8
# A lane is watched for one call at a time. A client that hung up wants no answer.
EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLONESHOT
HUNG_UP = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
MICROSECONDS = 1e-6
# By path, in the order of their numbers in a lane's calls.
METHODS = (
    *(
        f"/kvstore.v1.PrefixCacheService/{name}"
        for name in (
            "MatchPrefix",
            "AcquirePrefix",
            "ReservePages",
            "InsertPrefix",
            "ReleasePins",
            "AbortReservation",
        )
    ),
    "/kvstore.v1.LeaseService/RenewLease",
)
# The methods whose servicers take tokens beside the message.
TOKENS_BESIDE = frozenset(METHODS[:2])
SUCCEEDED = b""


class HotLanes:
    """Serves lanes from ``start`` to ``close``, or in a ``with`` block, tenants in turns.

    The attach server calls ``take`` and ``end``, the watchdog ``look``. All threads wait together
    for the next call. The one that wakes up reads it, makes it, and answers.
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
        self._pipeline = Pipeline(store, clock, store.call_times.get("lane"))
        self._methods = _methods(store)
        self._credentials = credentials
        self._fair: FairQueue[HotLane] = FairQueue(thread_count)
        self._mutex = Lock()
        self._table: ConnectionTable[HotLane] = ConnectionTable(max_lanes, "lanes")
        self._lanes: dict[int, HotLane] = {}
        self._of_process: Counter[int] = Counter()
        self._stopping = False
        self._probe_under_way = False
        self._epoll = select.epoll()
        self._stop_event = os.eventfd(0, os.EFD_CLOEXEC)
        self._probe = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._stop_event, select.EPOLLIN)
        self._epoll.register(self._probe, EVENTS)
        self._threads = [
            Thread(target=self._run, name=f"kvstore-lane-{number}", daemon=True)
            for number in range(thread_count)
        ]

    def start(self) -> None:
        """Starts the threads; once."""
        for each in self._threads:
            each.start()

    def close(self) -> None:
        """Waits for the calls under way, and ends all lanes; once, after ``start``."""
        self._stopping = True
        os.eventfd_write(self._stop_event, 1)
        for each in self._threads:
            each.join()
        for lane in list(self._lanes.values()):
            self._drop(lane)
        self._epoll.close()
        os.close(self._stop_event)
        os.close(self._probe)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # For the watchdog.

    def is_alive(self) -> bool:
        """Returns whether all threads run."""
        return all(each.is_alive() for each in self._threads)

    def look(self) -> None:
        """Sends a probe, unless one is under way. ``last_tick`` is when a thread took the last.

        It waits for a thread as a call does.
        """
        if not self._probe_under_way and not self._stopping:
            self._probe_under_way = True
            os.eventfd_write(self._probe, 1)

    # For the attach server.

    def require_room(self, party: Party) -> None:
        """Raises :class:`QuotaExceeded` if another lane would be one too many."""
        with self._mutex:
            if self._of_process[party.process_id] >= MAX_LANES_OF_PROCESS:
                raise QuotaExceeded(quota="lanes_of_process", maximum=MAX_LANES_OF_PROCESS)
            self._table.require_room(party.uid)

    def take(self, connection: socket.socket, party: Party) -> None:
        """Serves a connection from now on, and closes it at its end. There MUST be room."""
        lane = HotLane(connection, party, max_body_bytes=self._max_body_bytes)
        # For its first place in a queue. Each call looks whether the tenants changed.
        lane.identity = self._credentials.identity_of(party.uid)
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

    # In the threads.

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
        """Waits for a lane that has a call, and serves the lanes that are next."""
        for descriptor, events in self._epoll.poll(maxevents=1):
            if descriptor == self._stop_event:
                return
            if descriptor == self._probe:
                self._take_probe()
                continue
            lane = self._lanes[descriptor]
            if events & HUNG_UP:
                self._drop(lane)
                continue
            lane.came_at = self._clock()
            following = self._fair.enter(lane.identity.tenant, lane)
            while following is not None:
                tenant, lane = following
                try:
                    self._serve(lane)
                except Exception:
                    # The lanes that wait behind it are served all the same.
                    log.exception("lane_failed", failure_count=self._count_failure())
                finally:
                    following = self._fair.end(tenant)

    def _take_probe(self) -> None:
        os.eventfd_read(self._probe)
        self.last_tick = self._clock()
        self._probe_under_way = False
        self._epoll.modify(self._probe, EVENTS)

    def _serve(self, lane: HotLane) -> None:
        try:
            answer = self.answer(lane, lane.read())
            for _ in range(MOST_AT_ONCE):
                # A client waits for an answer with a body. Behind an empty one more may come.
                if answer[1] or self._fair.has_waiting or not lane.has_next():
                    break
                # Sent one by one they would wake a client that waits for the last.
                lane.hold(*answer)
                lane.came_at = self._clock()
                answer = self.answer(lane, lane.read())
            lane.write(*answer)
        except KVStoreError as error:
            # Where the next call begins is not known.
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

    def answer(self, lane: HotLane, frame: Frame) -> tuple[bytes, bytes]:
        """Makes a call that arrived over a lane; returns the head and the body of its answer.

        The tenants of now say whose it is. Raises :class:`InvalidField` if the head cannot be
        parsed.
        """
        try:
            head = LaneCall.FromString(frame.head)
        except DecodeError as error:
            raise InvalidField(field="head", why="not a LaneCall") from error
        tenants = self._credentials.tenants
        if lane.known_by is not tenants:
            lane.identity = self._credentials.identity_of(lane.party.uid)
            lane.known_by = tenants
        known = head.method < len(METHODS)
        method = (
            self._methods[head.method] if known else _unknown(head.method, self._pipeline.limits)
        )
        body, tokens, remaining = frame.body, None, None
        if frame.tokens:
            if method.path in TOKENS_BESIDE:
                body, tokens = body + EMPTY_SEQUENCE, frame.tokens
            else:
                body = frame.whole_body
        if head.timeout_us:
            remaining = head.timeout_us * MICROSECONDS - (self._clock() - lane.came_at)
        call = Call(lane.identity, lane.party.lease_secret, remaining, tokens)
        response, failure = self._pipeline.answer(method, head.request_id, _Incoming(call, body))
        if failure is not None:
            return LaneAnswer(status=failure).SerializeToString(), b""
        return SUCCEEDED, response

    def _drop(self, lane: HotLane) -> None:
        with self._mutex:
            self._table.discard(lane)
            self._of_process[lane.party.process_id] -= 1
            if not self._of_process[lane.party.process_id]:
                del self._of_process[lane.party.process_id]
            del self._lanes[lane.descriptor]
            self._epoll.unregister(lane.descriptor)
            lane.close()


class _Incoming(NamedTuple):
    """A call whose request is there already, without tokens that came beside it."""

    call: Call
    body: bytes

    @property
    def remaining(self) -> float | None:
        """The time to its deadline in seconds, which has not changed."""
        return self.call.remaining


def _methods(store: KVStore) -> list[Method]:
    """Returns the methods of ``METHODS``."""
    servicers = PrefixCacheServicer(store), LeaseServicer(store)
    found = []
    for path in METHODS:
        name = path.rpartition("/")[2]
        [serve] = [getattr(each, name) for each in servicers if hasattr(each, name)]
        found.append(method_of(path, serve, store.limits))
    return found


def _unknown(number: int, limits: Limits) -> Method:
    """Returns what stands for a method of an unknown number, and refuses its calls."""

    def refuse(request: bytes, call: Call) -> NoReturn:
        del request, call
        raise InvalidField(field="method", value=number, why="unknown")

    limit, longest = "max_message_bytes", limits.max_deadline
    return Method(
        "unknown",
        refuse,
        bytes,
        limit,
        limits.max_message_bytes,
        longest,
        giving_back=False,
        has_stream=False,
    )
