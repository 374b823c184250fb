"""The threads that take calls, one tenant's after another's.

gRPC hands each call to its thread pool as it comes: in one line, where a tenant
that sends a thousand calls at once makes everybody else wait for all of them,
and beyond the server's bound has everybody else's calls refused. Here each lane
has a line of its own, the lanes take turns, and who has too many calls under way
is refused before a thread is needed. A call may wait in its thread for a request
that is slow to come: so no lane has all the threads either.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock, local
from typing import Any, Generic, ParamSpec, TypeVar

import grpc
from grpc_health.v1 import health

from kvstore.rpc.grpc_adapter import EXEMPT, Continuation, Handler, Request, Response
from kvstore.rpc.identity import Callers
from kvstore.rpc.pipeline import GIVING_BACK
from kvstore.rpc.wire import status
from kvstore.service.tenancy.rate_limit import TooManyRequests, Traffic

W = TypeVar("W")


class Turns(Generic[W]):
    """Work of many lanes for ``thread_count`` threads. Thread-safe; nothing here waits.

    A lane has a thread for another piece of work only while it has fewer than are idle:
    alone it has half of them, and however many lanes take what they can, the next one
    finds one. A thread that put work in line, or ended some, is given what it has to do
    next, until there is none for it: what it is given takes it until it says :meth:`end`.
    """

    def __init__(self, thread_count: int) -> None:
        self._mutex = Lock()
        self._waiting: OrderedDict[Hashable, deque[W]] = OrderedDict()
        self._running: dict[Hashable, int] = {}
        self._idle = thread_count

    @property
    def has_line(self) -> bool:
        """Whether anybody stands in line, as it was a moment ago."""
        return bool(self._waiting)

    def put(self, lane: Hashable, work: W) -> None:
        """Puts work at the end of its lane's line."""
        with self._mutex:
            self._waiting.setdefault(lane, deque()).append(work)

    def begin(self) -> tuple[Hashable, W] | None:
        """Returns the first work of the lane that waits longest and may have a thread, if any."""
        with self._mutex:
            return self._next() if self._waiting else None

    def enter(self, lane: Hashable, work: W) -> tuple[Hashable, W] | None:
        """Puts work in line, and begin what comes first."""
        with self._mutex:
            running = self._running.get(lane, 0)
            if not self._waiting and running < self._idle:
                # Nobody is before it.
                self._running[lane] = running + 1
                self._idle -= 1
                return lane, work
            self._waiting.setdefault(lane, deque()).append(work)
            return self._next()

    def end(self, lane: Hashable) -> tuple[Hashable, W] | None:
        """Notes that work of a lane is done, and begin what comes next."""
        with self._mutex:
            self._idle += 1
            running = self._running[lane] - 1
            if running:
                self._running[lane] = running
            else:
                del self._running[lane]
            return self._next() if self._waiting else None

    def _next(self) -> tuple[Hashable, W] | None:
        may = (each for each in self._waiting if self._running.get(each, 0) < self._idle)
        lane = next(may, None)
        if lane is None:
            return None
        line = self._waiting[lane]
        work = line.popleft()
        if line:
            self._waiting.move_to_end(lane)
        else:
            del self._waiting[lane]
        self._running[lane] = self._running.get(lane, 0) + 1
        self._idle -= 1
        return lane, work


P = ParamSpec("P")
T = TypeVar("T")

# The lane of what is submitted in a thread where no call arrived.
ERRANDS = ("errands",)


class CallThreads(ThreadPoolExecutor):
    """A pool of ``thread_count`` threads for at most ``capacity`` calls.

    Lanes have threads as :class:`Turns` says.

    A call stands in the lane that ``arrive`` named last in the thread that submits
    it: gRPC asks its interceptors about a call and submits it in one thread, one
    call after another. Whatever else is submitted stands in a lane of its own.
    """

    def __init__(self, thread_count: int, capacity: int, name: str = "kvstore-rpc") -> None:
        super().__init__(thread_count, thread_name_prefix=name)
        self._capacity = capacity
        self._arrived = local()
        self._mutex = Lock()
        self._turns: Turns[Callable[[], None]] = Turns(thread_count)
        self._counts: dict[Hashable, int] = {}
        self._total = 0

    @property
    def largest_lane(self) -> int:
        """How many calls a lane can ever have under way where no other has any."""
        return self._capacity // 3

    def arrive(self, lane: Hashable, *, always: bool = False) -> bool:
        """Names the lane of the call that is submitted next in this thread.

        Returns False where it has to be refused: then the next call is run at once, in
        the thread that submits it, and MUST NOT wait for anything. A lane has at most
        half as many calls under way as there is room left for, or as many, for calls
        that come in ``always``: however many lanes are flooded, some room is left.
        """
        with self._mutex:
            count = self._counts.get(lane, 0)
            room = self._capacity - self._total
        admitted = count < (room if always else room // 2)
        self._arrived.lane, self._arrived.refused = lane, not admitted
        return admitted

    def refuse(self) -> None:
        """Have the call that is submitted next in this thread run as one that is refused."""
        self._arrived.refused = True

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Runs a call when its lane's turn comes."""
        lane: Hashable = getattr(self._arrived, "lane", ERRANDS)
        future: Future[T] = Future()
        work = partial(_run, future, partial(fn, *args, **kwargs))
        if getattr(self._arrived, "refused", False):
            work()
            return future
        with self._mutex:
            self._counts[lane] = self._counts.get(lane, 0) + 1
            self._total += 1
        self._turns.put(lane, work)
        future.add_done_callback(partial(self._leave, lane))
        super().submit(self._run_next)
        return future

    def _run_next(self) -> None:
        """Runs calls, each the first of the lane that waits longest, while a lane may have more."""
        turn = self._turns.begin()
        while turn is not None:
            lane, work = turn
            work()
            turn = self._turns.end(lane)

    def _leave(self, lane: Hashable, _: "Future[Any]") -> None:
        with self._mutex:
            self._total -= 1
            self._counts[lane] -= 1
            if not self._counts[lane]:
                del self._counts[lane]


def _run(future: "Future[T]", call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is whoever's that has the future
            future.set_exception(error)


# Lanes are ("tenant", name), and these.
UNKNOWN = ("unknown",)
PROBES = ("probes",)
CHECKS = f"/{health.SERVICE_NAME}/"
# Seconds after which a caller with too many calls under way may try again.
PATIENCE = 0.1


class Lanes(grpc.ServerInterceptor):
    """Names each call's lane to the pool, before anything of its request is read.

    A call without a credential that says its tenant, a client certificate's too,
    stands in one lane with all of its kind. A refused call takes no thread: it is
    ended in the one thread that all calls pass.
    """

    def __init__(
        self, threads: CallThreads, check_threads: CallThreads, callers: Callers, traffic: Traffic
    ) -> None:
        """``check_threads`` take the calls of health."""
        self._threads = threads
        self._check_threads = check_threads
        self._callers = callers
        self._traffic = traffic
        # Of requests as a stream, so that gRPC does not wait for one before it calls this.
        self._refusal: grpc.RpcMethodHandler[Any, Any] = grpc.stream_unary_rpc_method_handler(
            self._refuse
        )

    def intercept_service(
        self,
        continuation: "Continuation[Request, Response]",
        handler_call_details: grpc.HandlerCallDetails,
    ) -> "Handler[Request, Response]":
        """Goes on with a call that may have a thread, or refuse it."""
        method = handler_call_details.method
        if method.startswith(CHECKS):
            if self._check_threads.arrive(PROBES):
                return continuation(handler_call_details)
            self._threads.refuse()
            return self._refusal
        tenant = None
        lane: tuple[str, ...] = PROBES
        if not method.startswith(EXEMPT):
            tenant = self._callers.tenant_of(handler_call_details.invocation_metadata)
            lane = UNKNOWN if tenant is None else ("tenant", tenant)
        if self._threads.arrive(lane, always=method in GIVING_BACK):
            return continuation(handler_call_details)
        if tenant is not None:
            self._traffic.refused(tenant)
        return self._refusal

    def _refuse(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
        del requests
        error = TooManyRequests(
            quota="calls_under_way",
            maximum=self._threads.largest_lane,
            retry_after_s=PATIENCE,
        )
        status.abort(context, error)
