"""A channel to a store and the calls over it, errors typed."""

import time
from collections.abc import Callable
from typing import Any

import grpc

from kvstore import tracing
from kvstore.v1 import (
    lease_pb2,
    lease_pb2_grpc,
    named_pin_pb2_grpc,
    prefix_cache_pb2,
    prefix_cache_pb2_grpc,
    store_pb2_grpc,
)
from kvstore_client.calls.lane_pool import LanePool
from kvstore_client.errors import StoreTimedOut, StoreUnavailable, error_of_call
from kvstore_client.values.packed_tokens import sequence_pieces

MAX_MESSAGE_BYTES = 16 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    # A unix socket exists or not, so a long backoff gains nothing.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
    # A channel must not share connections with a channel of another epoch.
    ("grpc.use_local_subchannel_pool", 1),
    # The client decides which calls may be repeated.
    ("grpc.enable_retries", 0),
)


# The gRPC paths of the services whose calls a lane may carry.
PREFIX_CACHE = "/kvstore.v1.PrefixCacheService/"
LEASE = "/kvstore.v1.LeaseService/"
# Calls that have to see the slots of all earlier releases.
IN_ORDER = {PREFIX_CACHE + name for name in ("AcquirePrefix", "ReservePages", "RunStep")}


class StoreCalls:
    """A channel with a credential, and with a lease's secret where there is a lease.

    Without ``trust`` nothing is encrypted. Without a credential a certificate in ``trust``
    identifies the caller. The stubs ``lease``, ``prefix_cache``, ``named_pin`` and ``store``
    have the methods. Every call has a timeout in seconds. It is sent once, over a lane if
    :meth:`use_lanes` gave some, and again over gRPC if the lane broke. Any thread may use it.
    """

    def __init__(
        self,
        target: str,
        credential: str,
        lease_secret: bytes = b"",
        *,
        trust: grpc.ChannelCredentials | None = None,
    ) -> None:
        if trust is None:
            self._channel = grpc.insecure_channel(target, options=CHANNEL_OPTIONS)
        else:
            self._channel = grpc.secure_channel(target, trust, options=CHANNEL_OPTIONS)
        self._metadata: tuple[tuple[str, str | bytes], ...] = ()
        if credential:
            self._metadata += (("authorization", f"Bearer {credential}"),)
        if lease_secret:
            self._metadata += (("kvstore-lease-secret-bin", lease_secret),)
        self._lanes: LanePool | None = None
        self._on_lanes: dict[Any, tuple[str, Any]] = {}
        self._cancelled = False
        self._cancellable: grpc.Future[Any] | None = None
        self.lease = lease_pb2_grpc.LeaseServiceStub(self._channel)
        self.prefix_cache = prefix_cache_pb2_grpc.PrefixCacheServiceStub(self._channel)
        self.named_pin = named_pin_pb2_grpc.NamedPinServiceStub(self._channel)
        self.store = store_pb2_grpc.StoreServiceStub(self._channel)

    def use_lanes(self, lanes: LanePool) -> None:
        """Makes the calls of the request path over ``lanes``; :meth:`close` closes them."""
        cache, lease, pb = self.prefix_cache, self.lease, prefix_cache_pb2
        self._on_lanes = {
            cache.MatchPrefix: (PREFIX_CACHE + "MatchPrefix", pb.MatchPrefixResponse),
            cache.AcquirePrefix: (PREFIX_CACHE + "AcquirePrefix", pb.AcquirePrefixResponse),
            cache.ReservePages: (PREFIX_CACHE + "ReservePages", pb.ReservePagesResponse),
            cache.InsertPrefix: (PREFIX_CACHE + "InsertPrefix", pb.InsertPrefixResponse),
            cache.ReleasePins: (PREFIX_CACHE + "ReleasePins", pb.ReleasePinsResponse),
            cache.AbortReservation: (
                PREFIX_CACHE + "AbortReservation",
                pb.AbortReservationResponse,
            ),
            cache.RunStep: (PREFIX_CACHE + "RunStep", pb.RunStepResponse),
            cache.PrefetchPrefix: (PREFIX_CACHE + "PrefetchPrefix", pb.PrefetchPrefixResponse),
            lease.RenewLease: (LEASE + "RenewLease", lease_pb2.RenewLeaseResponse),
        }
        self._lanes = lanes

    def call(self, method: Any, request: Any, timeout: float, *, tokens: bytes = b"") -> Any:  # noqa: ANN401  # stubs are untyped
        """Returns a method's answer; raises :class:`~kvstore_client.errors.StoreError`.

        ``tokens`` are the request's ``sequence.tokens``, which the message does not have yet.
        A lane sends them without the copy that a message would make.
        """
        if not tracing.ON:
            return self._make(method, request, timeout, tokens)
        with tracing.span(f"client {_name_of(method)}"):
            return self._make(method, request, timeout, tokens)

    def _make(self, method: Any, request: Any, timeout: float, tokens: bytes) -> Any:  # noqa: ANN401  # as call
        if self._lanes is not None and method in self._on_lanes:
            path, response = self._on_lanes[method]
            pieces = [request.SerializeToString()]
            if tokens:
                pieces += sequence_pieces(tokens)
            sent_at = time.monotonic()
            answer = self._lanes.call(path, pieces, timeout, in_order=path in IN_ORDER)
            if answer is not None:
                return response.FromString(answer)
            timeout -= time.monotonic() - sent_at
            if timeout <= 0:
                raise StoreTimedOut("a lane broke as the deadline passed")
        if tokens:
            request.sequence.tokens = tokens
        try:
            return method(request, timeout=timeout, metadata=self._metadata_now())
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        except ValueError as error:
            # What grpc raises for a call on a closed channel.
            raise StoreUnavailable(str(error)) from None

    def stream(self, method: Any, request: Any, timeout: float) -> Any:  # noqa: ANN401  # as call
        """Returns a streaming call of at most ``timeout`` seconds.

        Reading its answers raises gRPC's errors; ``error_of_call`` turns them into ours.
        """
        try:
            return method(request, timeout=timeout, metadata=self._metadata_now())
        except ValueError as error:
            raise StoreUnavailable(str(error)) from None

    def _metadata_now(self) -> tuple[tuple[str, str | bytes], ...]:
        """Returns the metadata of a call, with its span if it is traced."""
        if not tracing.ON:
            return self._metadata
        return (*self._metadata, (tracing.TRACEPARENT, tracing.traceparent()))

    def post(
        self,
        method: Any,  # noqa: ANN401  # as call
        request: Any,  # noqa: ANN401  # as call
        timeout: float,
        on_result: Callable[[bool], None],
    ) -> bool:
        """Sends a call over a lane without waiting. Returns False if no lane is free.

        ``LanePool.post`` describes when ``on_result`` is called.
        """
        if self._lanes is None:
            return False
        path, _ = self._on_lanes[method]
        return self._lanes.post(path, [request.SerializeToString()], timeout, on_result)

    def collect(self, seconds: float = 0.0) -> None:
        """Reads answers to posted calls that arrived or arrive within ``seconds``."""
        if self._lanes is not None:
            self._lanes.collect(seconds)

    def call_cancellably(self, method: Any, request: Any, timeout: float) -> Any:  # noqa: ANN401  # as call
        """Returns a method's answer as :meth:`call` does, over gRPC; :meth:`cancel` ends it.

        One thread at a time uses it.
        """
        if self._cancelled:
            raise StoreUnavailable("CANCELLED: given up by this client")
        try:
            future: grpc.Future[Any] = method.future(
                request, timeout=timeout, metadata=self._metadata
            )
            self._cancellable = future
            if self._cancelled:  # meanwhile, when there was no future to cancel yet
                future.cancel()
            return future.result()
        except grpc.RpcError as error:
            raise error_of_call(error) from None
        except grpc.FutureCancelledError:
            raise StoreUnavailable("CANCELLED: given up by this client") from None
        except ValueError as error:
            raise StoreUnavailable(str(error)) from None

    def cancel(self) -> None:
        """Ends the cancellable call in progress, and every later one."""
        self._cancelled = True
        if self._cancellable is not None:
            self._cancellable.cancel()

    def close(self) -> None:
        """Cancels the calls in progress and closes the channel. Can be repeated."""
        if self._lanes is not None:
            self._lanes.close()
        self._channel.close()


def _name_of(method: Any) -> str:  # noqa: ANN401  # a stub's
    path: bytes = getattr(method, "_method", b"call")
    return path.decode().rpartition("/")[2]
