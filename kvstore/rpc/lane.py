"""Lanes: connections of attached processes that carry calls of the request path.

A lane carries one call at a time. A few threads serve all lanes, so an idle lane costs none. One of
them has the turn to serve; the others take over while it waits.
"""

import os
import select
import socket
import struct
from collections import Counter
from contextlib import suppress
from threading import Lock, Thread
from typing import NamedTuple, NoReturn, Self

import structlog
from google.protobuf.message import DecodeError

from kvstore.core import Identity
from kvstore.errors import InvalidField, KVStoreError, LimitExceeded, QuotaExceeded
from kvstore.rpc.attach.table import ConnectionTable
from kvstore.rpc.fair_queue import FairQueue
from kvstore.rpc.pipeline import Call, Method, Pipeline, method_of, unknown_method
from kvstore.rpc.servicers.lease import LeaseServicer
from kvstore.rpc.servicers.prefix_cache import PrefixCacheServicer
from kvstore.rpc.wire import status
from kvstore.rpc.wire.token_tail import EMPTY_SEQUENCE, FRONT_BYTES, tail_of
from kvstore.service.clock import Clock
from kvstore.service.serving_turn import ServingTurn, let_others_serve
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service.tenancy.tenant_lookup import Tenants
from kvstore.v1.attach_pb2 import LaneAnswer, LaneCall

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The feature that a lease declares, and that a server with lanes offers.
FEATURE = "hot_lane"
# One makes calls, while the others wait for pages of lower tiers, or for slow clients.
THREAD_COUNT = 8
# Calls after which lanes that wait by then are noticed: they may be of other tenants.
LOOK_EVERY = 4
# Calls after which a thread passes its turn on if more wait. On a host without an idle processor
# the kernel gives each thread a share of its own.
MOST_IN_A_ROW = 32
MAX_LANES = 256
# A process makes few calls at the same time. One that makes more of them has gRPC besides.
MAX_LANES_OF_PROCESS = 8
# Calls that arrived behind one whose answer is empty are served at once if no other lane waits,
# and the empty answers are sent with the last one.
MOST_AT_ONCE = 8
# What arrives on a lane is told once, so a call needs no system call for its lane to be watched.
EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
PROBE_EVENTS = select.EPOLLIN | select.EPOLLONESHOT
# A client that hung up wants no answer.
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
    "/kvstore.v1.PrefixCacheService/RunStep",
    "/kvstore.v1.PrefixCacheService/PrefetchPrefix",
)
# The methods whose servicers take tokens beside the message.
TOKENS_BESIDE = frozenset((*METHODS[:2], METHODS[-1]))
SUCCEEDED = b""
# Bytes of a call's head: three small fields.
MAX_HEAD_BYTES = 1 << 10
# Two lengths: of the head and of the body.
LENGTHS = struct.Struct("<II")
# Bytes of a body that are received with all before it: a copy of them is cheaper than a second
# system call, after which the thread may wait for the interpreter.
SMALL_BYTES = 1 << 14
# Bytes that are received at once.
LOOK_BYTES = LENGTHS.size + MAX_HEAD_BYTES + SMALL_BYTES
# Seconds for the rest of a call that has begun, and for an answer to be read. A peer that is
# slower than that over a unix socket is stopped, and would keep a thread.
PATIENCE = 1.0
# struct timeval, for SO_RCVTIMEO and SO_SNDTIMEO.
TIMEVAL = struct.Struct("@ll")
# The answer to a long prompt does not wait for its reader; the kernel bounds this.
BUFFER_BYTES = 1 << 20


class Party(NamedTuple):
    """The owner of a lane: the peer's uid, and the lease and process for which it was opened.

    ``secret_digest`` is that of the lease's secret, which is hashed once for all calls of the lane.
    """

    uid: int
    lease_id: bytes
    secret_digest: bytes
    process_id: int


class Frame(NamedTuple):
    """A call as it was received. Its body is ``body``, ``key`` and ``tokens`` in this order.

    ``tokens`` are those of its sequence if it ends with them and they are many, and ``key`` has the
    keys and lengths before them. Otherwise both are empty.
    """

    head: bytes
    body: bytes
    key: bytes = b""
    tokens: bytes = b""

    @property
    def whole_body(self) -> bytes:
        """All of the body, a copy of it if it is in parts."""
        return b"".join((self.body, self.key, self.tokens)) if self.tokens else self.body


class HotLane:
    """A lane's socket, which it owns. One thread at a time uses it.

    The server sets ``came_at``, the time when the call that is read next arrived, by the store's
    clock, and ``identity``, the caller's. ``known_by`` are the tenants by which it is known. It
    also sets ``is_queued`` while the lane waits for a thread or has one, and ``may_be_gone`` once
    the client seems to have hung up. ``descriptor`` is the socket's.
    """

    __slots__ = (
        *("_held", "_is_drained", "_max_body_bytes", "_place", "_received", "_socket", "came_at"),
        *("descriptor", "identity", "is_queued", "known_by", "may_be_gone", "party"),
    )

    def __init__(self, connection: socket.socket, party: Party, *, max_body_bytes: int) -> None:
        self.party = party
        self.came_at = 0.0
        self.identity = Identity("")
        self.known_by: Tenants | None = None
        self.is_queued = self.may_be_gone = False
        self.descriptor = connection.fileno()
        self._socket = connection
        self._held = b""
        # What was received, and where in it the part begins that was not taken yet.
        self._received = b""
        self._place = 0
        self._is_drained = False
        self._max_body_bytes = max_body_bytes
        connection.settimeout(None)
        patience = TIMEVAL.pack(int(PATIENCE), round(PATIENCE % 1 * 1e6))
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            connection.setsockopt(socket.SOL_SOCKET, option, patience)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def read(self) -> Frame:
        """Returns the call that has begun to arrive, as ``has_next`` said.

        Raises :class:`LimitExceeded` for lengths over the bounds, before anything is allocated for
        them. Raises EOFError or OSError if the rest does not arrive in time. The lane is useless
        then.
        """
        lengths = self._take(LENGTHS.size)
        head_bytes, body_bytes = LENGTHS.unpack(lengths)
        if head_bytes > MAX_HEAD_BYTES or body_bytes > self._max_body_bytes:
            self._refuse(head_bytes, body_bytes)
        head = self._take(head_bytes)
        if body_bytes > SMALL_BYTES:
            return self._large(head, body_bytes)
        return Frame(head, self._take(body_bytes))

    def has_next(self) -> bool:
        """Returns whether another call has begun to arrive; sets ``may_be_gone`` at the end."""
        if self._place < len(self._received):
            return True
        # First, so that what arrives from here on is noted in any case.
        self._is_drained = True
        try:
            received = self._socket.recv(LOOK_BYTES, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        if not received:
            self.may_be_gone, self._is_drained = True, False
            return False
        self._received, self._place = received, 0
        if len(received) == LOOK_BYTES:
            self._is_drained = False
        # Fewer bytes were all that had arrived, unless descriptors came with them. Who sends those
        # may wait for an answer until it sends more.
        return True

    def note_arrival(self) -> None:
        """Notes that more bytes arrived. Any thread."""
        self._is_drained = False

    @property
    def may_have_more(self) -> bool:
        """True unless all bytes were taken, and none arrived since they were looked for."""
        return self._place < len(self._received) or not self._is_drained

    def is_gone(self) -> bool:
        """Returns whether the peer hung up."""
        poll = select.poll()
        poll.register(self._socket, select.POLLRDHUP)
        return bool(poll.poll(0))

    def hold(self, head: bytes, body: bytes) -> None:
        """Keeps an answer to send it with the next one."""
        self._held += LENGTHS.pack(len(head), len(body)) + head + body

    def write(self, head: bytes, body: bytes) -> None:
        """Sends an answer. Raises OSError if the peer is gone or does not read it in time."""
        held, self._held = self._held, b""
        answer = held + LENGTHS.pack(len(head), len(body)) + head + body
        try:
            sent = self._socket.send(answer, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent < len(answer):
            let_others_serve()
            self._socket.sendall(memoryview(answer)[sent:])

    def shut(self) -> None:
        """Ends the connection, so that its reader finds the end. Any thread, before ``close``."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes the socket; once."""
        self._socket.close()

    def _refuse(self, head_bytes: int, body_bytes: int) -> NoReturn:
        limit, maximum, value = "frame_bytes", self._max_body_bytes, body_bytes
        if head_bytes > MAX_HEAD_BYTES:
            limit, maximum, value = "frame_head_bytes", MAX_HEAD_BYTES, head_bytes
        raise LimitExceeded(limit=limit, maximum=maximum, value=value)

    def _large(self, head: bytes, body_bytes: int) -> Frame:
        """Receives a long body, its tokens into bytes of their own."""
        front_bytes = self._place + FRONT_BYTES
        if len(self._received) < front_bytes:
            self._receive(front_bytes - len(self._received))
        tail = tail_of(self._received[self._place : self._place + FRONT_BYTES], body_bytes)
        if tail is None:
            return Frame(head, self._take(body_bytes))
        front = self._take(tail.tokens)
        tokens = self._take(body_bytes - tail.tokens)
        return Frame(head, front[: tail.field], front[tail.field :], tokens)

    def _take(self, count: int) -> bytes:
        """Returns the next ``count`` bytes, after it waited for those that are missing."""
        missing = self._place + count - len(self._received)
        if missing > 0:
            self._receive(missing)
        end = self._place + count
        taken = self._received[self._place : end]
        if end == len(self._received):
            # An idle lane keeps no memory of a large call.
            self._received, self._place = b"", 0
        else:
            self._place = end
        return taken

    def _receive(self, count: int) -> None:
        """Receives ``count`` bytes. Memory is touched as they arrive, not as they are announced."""
        # Whether this is all that arrived is not known.
        self._is_drained = False
        try:
            data = self._socket.recv(count, socket.MSG_DONTWAIT)
        except BlockingIOError:
            data = b""
        if len(data) < count:
            let_others_serve()
            data += self._socket.recv(count - len(data), socket.MSG_WAITALL)
            if len(data) < count:
                raise EOFError
        self._received = self._received[self._place :] + data
        self._place = 0


class HotLanes:
    """Serves lanes from ``start`` to ``close``, or in a ``with`` block, tenants in turns.

    The attach server calls ``take`` and ``end``, the watchdog ``look``. The thread that has the
    turn waits for the next calls, makes them, and answers.
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
        # All lanes, and the three events.
        self._most_events = max_lanes + 3
        self._methods = _methods(store)
        self._credentials = credentials
        self._turn = ServingTurn()
        self._fair: FairQueue[HotLane] = FairQueue(thread_count)
        times = store.call_times.get("lane")
        self._pipeline = Pipeline(store, clock, times, self._fair.charge)
        self._mutex = Lock()
        self._table: ConnectionTable[HotLane] = ConnectionTable(max_lanes, "lanes")
        self._lanes: dict[int, HotLane] = {}
        self._of_process: Counter[int] = Counter()
        self._stopping = False
        self._probe_under_way = False
        self._epoll = select.epoll()
        self._stop_event = os.eventfd(0, os.EFD_CLOEXEC)
        self._probe = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        # Wakes the thread that has the turn, for lanes that wait and now may have a thread.
        self._freed = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll.register(self._stop_event, select.EPOLLIN)
        self._epoll.register(self._freed, select.EPOLLIN)
        self._epoll.register(self._probe, PROBE_EVENTS)
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
        os.close(self._freed)

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
            with self._turn:
                while self._turn.is_mine and not self._stopping:
                    try:
                        self._round()
                    except Exception:
                        log.exception("lane_failed", failure_count=self._count_failure())

    def _count_failure(self) -> int:
        with self._mutex:
            self.failure_count += 1
            return self.failure_count

    def _round(self) -> None:
        """Serves the lanes that wait, after it waited for one if there is none."""
        following = self._fair.next()
        if following is None:
            self._collect(None)
            following = self._fair.next()
        made = looked = 0
        while following is not None:
            tenant, lane = following
            count = 1
            try:
                count = self._serve(lane)
            except Exception:
                # The lanes that wait behind it are served all the same.
                log.exception("lane_failed", failure_count=self._count_failure())
            finally:
                self._fair.leave(tenant)
            if not self._turn.is_mine:
                # Whoever has the turn serves the lanes that may have this thread's place.
                if self._fair.has_waiting:
                    os.eventfd_write(self._freed, 1)
                return
            made += count
            if made - looked >= LOOK_EVERY:
                looked = made
                self._collect(0)
            if made >= MOST_IN_A_ROW and self._fair.has_waiting:
                self._turn.pass_on()
                return
            following = self._fair.next()

    def _collect(self, timeout: float | None) -> None:
        """Puts the lanes that have a call into their tenants' queues."""
        for descriptor, events in self._epoll.poll(timeout, self._most_events):
            if descriptor == self._stop_event:
                continue
            if descriptor == self._probe:
                self._take_probe()
                continue
            if descriptor == self._freed:
                os.eventfd_read(self._freed)
                continue
            with self._mutex:
                lane = self._lanes.get(descriptor)
                if lane is None:
                    # The thread that served it found that it had ended.
                    continue
                lane.may_be_gone |= bool(events & HUNG_UP)
                lane.note_arrival()
                if lane.is_queued:
                    continue
                lane.is_queued = True
            if lane.may_be_gone and lane.is_gone():
                # Its tenant may have no thread for it.
                self._drop(lane)
                continue
            self._put(lane)

    def _put(self, lane: HotLane) -> None:
        lane.came_at = self._clock()
        self._fair.put(lane.identity.tenant, lane)

    def _take_probe(self) -> None:
        os.eventfd_read(self._probe)
        self.last_tick = self._clock()
        self._probe_under_way = False
        self._epoll.modify(self._probe, PROBE_EVENTS)

    def _serve(self, lane: HotLane) -> int:
        """Makes the calls that arrived together; returns how many they count as."""
        count = 1
        try:
            count = self._make_calls(lane)
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
            with self._mutex:
                lane.is_queued = has_more = lane.may_have_more
            if has_more:
                self._put(lane)
        return count

    def _make_calls(self, lane: HotLane) -> int:
        """Makes the calls that arrived together; returns their number.

        A look counts as one if an event came for bytes that were read before.
        """
        if lane.may_be_gone:
            lane.may_be_gone = False
            if lane.is_gone():
                raise EOFError
        if not lane.has_next():
            return 1
        answer, count = self.answer(lane, lane.read()), 1
        for _ in range(MOST_AT_ONCE):
            # A client waits for an answer with a body. Behind an empty one more may come.
            if answer[1] or self._fair.has_waiting or lane.may_be_gone or not lane.has_next():
                break
            # Sent one by one they would wake a client that waits for the last.
            lane.hold(*answer)
            lane.came_at = self._clock()
            answer, count = self.answer(lane, lane.read()), count + 1
        lane.write(*answer)
        if lane.may_have_more:
            # Else it would wait for a turn, and the next call's deadline begin, before that came.
            lane.has_next()
        return count

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
            self._methods[head.method]
            if known
            else unknown_method("method", head.method, self._pipeline.limits)
        )
        body, tokens, remaining = frame.body, None, None
        if frame.tokens:
            if method.path in TOKENS_BESIDE:
                body, tokens = body + EMPTY_SEQUENCE, frame.tokens
            else:
                body = frame.whole_body
        if head.timeout_us:
            remaining = head.timeout_us * MICROSECONDS - (self._clock() - lane.came_at)
        call = Call(lane.identity, lane.party.secret_digest, remaining, tokens)
        response, failure = self._pipeline.answer(
            method, head.request_id, _Incoming(call, body, remaining)
        )
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
    remaining: float | None


def _methods(store: KVStore) -> list[Method]:
    """Returns the methods of ``METHODS``."""
    servicers = PrefixCacheServicer(store), LeaseServicer(store)
    found = []
    for path in METHODS:
        name = path.rpartition("/")[2]
        [serve] = [getattr(each, name) for each in servicers if hasattr(each, name)]
        found.append(method_of(path, serve, store.limits))
    return found
