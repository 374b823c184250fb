"""Health over gRPC: Check answers, and Watch is told by one thread for all watchers."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Condition, Thread
from typing import Any, TypeAlias

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from kvstore.errors import QuotaExceeded
from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.wire import status

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# A watcher takes no thread; this only bounds what those who ask for ever more can take.
MAX_WATCHERS = 256
# A check whose request is slow to come has one of them meanwhile. They are all in one lane,
# which has half of these, and a third of this many calls.
CHECK_THREADS = 8
MAX_CHECKS = 96
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

Send: TypeAlias = Callable[[health_pb2.HealthCheckResponse], None]


class _Watcher:
    """One call of Watch; ``said`` is the status that it was told last."""

    __slots__ = ("said", "send", "service")

    def __init__(self, service: str, send: Send) -> None:
        self.service = service
        self.send = send
        self.said: int | None = None


class _OnThreads:
    """A method that gRPC runs on threads of its own, whatever the others do.

    With all threads of the server stuck, health still says so.
    """

    def __init__(self, method: Callable[..., Any], threads: ThreadPoolExecutor) -> None:
        self._method = method
        # Where gRPC looks: _select_thread_pool_for_behavior in grpc/_server.py.
        self.experimental_thread_pool = threads

    def __call__(self, request: Any, context: grpc.ServicerContext, *send: Send) -> Any:  # noqa: ANN401
        return self._method(request, context, *send)


class _Sending(_OnThreads):
    """One that asks gRPC for ``send``, to be called from any thread, in place of an iterator."""

    experimental_non_blocking = True


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # it is untyped
    """Says a status of each service by name, of ``services`` NOT_SERVING at first. Thread-safe.

    Whoever sends waits for gRPC's own thread, on which watches end, too. The
    servicer that comes with gRPC sends while it holds what the end of a watch
    waits for: a few cancelled watches stop the whole server. Here nothing is held
    while something is sent. A client that takes nothing of what it watches holds
    up the other watchers, and nothing else.
    """

    def __init__(self, services: Iterable[str], max_watchers: int = MAX_WATCHERS) -> None:
        self._statuses = dict.fromkeys(services, NOT_SERVING)
        self._together = frozenset(self._statuses)
        self._final: frozenset[str] = frozenset()
        self._max_watchers = max_watchers
        self.threads = CallThreads(CHECK_THREADS, MAX_CHECKS, "kvstore-health-check")
        self.Check = _OnThreads(self._check, self.threads)
        self.List = _OnThreads(self._list, self.threads)
        self.Watch = _Sending(self._watch, self.threads)
        self._closing = False
        self._state = Condition()
        self._watchers: set[_Watcher] = set()
        self._behind: set[_Watcher] = set()
        self._thread: Thread | None = None

    def set(self, status: int, *names: str, final: bool = False) -> None:
        """Says ``status`` of ``names`` from now on; of what is final nothing else. Never waits.

        Without names it is said of all that this was made with.
        """
        with self._state:
            changed = (frozenset(names) or self._together) - self._final
            self._statuses.update(dict.fromkeys(changed, status))
            if final:
                self._final |= changed
            self._behind |= {each for each in self._watchers if each.service in changed}
            self._state.notify_all()

    def status(self, name: str) -> int | None:
        """Returns what is said of a service, None where it is unknown."""
        return self._statuses.get(name)

    def close(self) -> None:
        """Tell watchers nothing more. Does not wait."""
        with self._state:
            self._closing = True
            self._state.notify_all()

    def _check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Answers a service's status; NOT_FOUND for an unknown one."""
        said = self.status(request.service)
        if said is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=said)

    def _list(
        self, request: health_pb2.HealthListRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """Answers the status of every service."""
        del request, context
        with self._state:
            said = dict(self._statuses)
        return health_pb2.HealthListResponse(
            statuses={
                name: health_pb2.HealthCheckResponse(status=status) for name, status in said.items()
            }
        )

    def _watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.ServicerContext,
        send: Send,
    ) -> None:
        """Answers a service's status, and again whenever it changes, until the call ends.

        Ends the call with QuotaExceeded for one watcher too many.
        """
        watcher = _Watcher(request.service, send)
        with self._state:
            room = len(self._watchers) < self._max_watchers
            if room:
                self._watchers.add(watcher)
                self._behind.add(watcher)
                self._state.notify_all()
                self._require_thread()
        if not room:
            status.abort(
                context, QuotaExceeded(quota="health_watchers", maximum=self._max_watchers)
            )
        if not context.add_callback(lambda: self._forget(watcher)):
            self._forget(watcher)

    def _require_thread(self) -> None:
        if self._thread is None:
            self._thread = Thread(target=self._run, name="kvstore-watchers", daemon=True)
            self._thread.start()

    def _forget(self, watcher: _Watcher) -> None:
        """Tell a watcher nothing more; on gRPC's own thread."""
        with self._state:
            self._watchers.discard(watcher)
            self._behind.discard(watcher)

    def _run(self) -> None:
        while (behind := self._next()) is not None:
            watcher, said = behind
            try:
                watcher.send(health_pb2.HealthCheckResponse(status=said))
            except Exception:
                log.exception("watcher_failed")
                self._forget(watcher)

    def _next(self) -> tuple[_Watcher, int] | None:
        """Waits for a watcher that is behind; returns what to tell it, None once closing."""
        with self._state:
            while True:
                self._state.wait_for(lambda: self._closing or self._behind)
                if self._closing:
                    return None
                watcher = self._behind.pop()
                said = self._statuses.get(watcher.service, SERVICE_UNKNOWN)
                if said != watcher.said:
                    watcher.said = said
                    return watcher, said
