"""Whose line a call stands in, and its refusal where that line is too long."""

from collections.abc import Iterator
from typing import Any

import grpc
from grpc_health.v1 import health

from kvstore.rpc import status
from kvstore.rpc.call_rules import GIVING_BACK
from kvstore.rpc.call_threads import CallThreads
from kvstore.rpc.identity import Callers
from kvstore.rpc.interceptors import EXEMPT, Continuation, Handler, Request, Response
from kvstore.service.traffic import TooManyRequests, Traffic

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
        """Go on with a call that may have a thread, or refuse it."""
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
