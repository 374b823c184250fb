"""The Check and List methods of grpc.health.v1."""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2

from kvstore.rpc.fair_queue import CallThreads

# A check occupies a thread while its request arrives. All checks share one queue, which may use
# half of the threads and a third of the calls.
CHECK_THREADS = 8
MAX_CHECKS = 96
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class HealthServicer:
    """Answers the status of services, on threads of its own, so it answers when others hang.

    ``states`` says of each service by name whether it serves. Watch answers UNIMPLEMENTED: in
    grpcio-health-checking 1.85 a few cancelled watches stop the whole server.
    """

    def __init__(self, states: Mapping[str, Callable[[], bool]]) -> None:
        self._states = states
        self.threads = CallThreads(CHECK_THREADS, MAX_CHECKS, "kvstore-health-check")

    def add_to(self, server: grpc.Server) -> None:
        """Registers the two methods."""
        messages = health_pb2
        methods = {
            "Check": grpc.unary_unary_rpc_method_handler(
                _on_threads(self.check, self.threads),
                messages.HealthCheckRequest.FromString,
                messages.HealthCheckResponse.SerializeToString,
            ),
            "List": grpc.unary_unary_rpc_method_handler(
                _on_threads(self.list, self.threads),
                messages.HealthListRequest.FromString,
                messages.HealthListResponse.SerializeToString,
            ),
        }
        server.add_registered_method_handlers(health.SERVICE_NAME, methods)

    def check(
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """Returns the status of a service; NOT_FOUND for an unknown one."""
        if request.service not in self._states:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return self._status(request.service)

    def list(
        self, request: health_pb2.HealthListRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """Returns the status of every service."""
        del request, context
        statuses = {name: self._status(name) for name in self._states}
        return health_pb2.HealthListResponse(statuses=statuses)

    def _status(self, name: str) -> health_pb2.HealthCheckResponse:
        serving = self._states[name]()
        return health_pb2.HealthCheckResponse(status=SERVING if serving else NOT_SERVING)


def _on_threads(method: Callable[..., Any], threads: ThreadPoolExecutor) -> Callable[..., Any]:
    """Returns a method that gRPC runs on ``threads``."""
    marked = partial(method)
    # gRPC reads this mark: _select_thread_pool_for_behavior in grpc/_server.py.
    marked.experimental_thread_pool = threads  # type: ignore[attr-defined]
    return marked
