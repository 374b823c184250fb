"""What every call passes, whatever brought it: over gRPC, or over a lane."""

import logging
import random
import re
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any, Self, TypeAlias

import grpc
import structlog
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor
from google.rpc import status_pb2

from kvstore import tracing
from kvstore.core import Limits
from kvstore.errors import InvalidField, KVStoreError, LimitExceeded
from kvstore.logs import CALL
from kvstore.rpc.wire import status
from kvstore.service.clock import Clock
from kvstore.service.tenancy.rate_limit import Traffic
from kvstore.service.timing import CallTimes


def require_size(size: int, limit: str, limits: Limits) -> None:
    """Raises LimitExceeded for a request of more bytes than the named limit."""
    maximum = getattr(limits, limit)
    if size > maximum:
        raise LimitExceeded(limit=limit, maximum=maximum, value=size)


def size_limit_of(method: str) -> str:
    """Returns the name of the limit on a method's requests.

    ``method`` is the path of a call, as in ``/kvstore.v1.LeaseService/GrantLease``.
    Requests with token ids may be as long as any message.
    """
    name = method.removeprefix("/").replace("/", ".")
    request = descriptor_pool.Default().FindMethodByName(name).input_type
    return "max_message_bytes" if _has_tokens(request) else "max_short_message_bytes"


def _has_tokens(message: Descriptor) -> bool:
    inner = (each.message_type for each in message.fields if each.message_type is not None)
    return "tokens" in message.fields_by_name or any(map(_has_tokens, inner))


Logger: TypeAlias = structlog.typing.FilteringBoundLogger

# A client's own id is taken if it can do no harm in a log.
REQUEST_ID_FORM = re.compile(r"[A-Za-z0-9._:/-]{1,64}")
# What gives something back, or keeps a lease that holds something, is not refused for its
# rate: refusing it would only make the store hold more.
GIVING_BACK = frozenset(
    {
        "/kvstore.v1.LeaseService/RenewLease",
        "/kvstore.v1.LeaseService/RevokeLease",
        "/kvstore.v1.NamedPinService/UnpinPrefix",
        "/kvstore.v1.PrefixCacheService/AbortReservation",
        "/kvstore.v1.PrefixCacheService/ReleasePins",
    }
)
# Why a request is refused that cannot be read.
NOT_OF_ITS_TYPE = "not a message of its type"
# gRPC sends a timeout in few digits, rounded up: 60 s come as 60.1 s.
DEADLINE_ROUNDING = 1.02


def usable_request_id(given: str) -> str:
    """Returns the id that the client gave the call, or none where it is of no use."""
    return given if given and REQUEST_ID_FORM.fullmatch(given) else ""


def call_logger() -> Logger:
    """Returns what outcomes log with.

    Made once for many calls: to find out for each that nothing is logged takes as long as
    to log it.
    """
    log: Logger = structlog.get_logger().bind()
    return log


class Outcome:
    """One call, from now on until it :meth:`ended`; or as a context manager, which ends it.

    An error of ours becomes its status, ``failure``; anything else is a bug, becomes
    INTERNAL and is logged with its traceback. One line a call at debug, never a
    request's content. Out of a block a ``grpc.RpcError`` alone goes on. ``times`` are told how
    long it took; where calls are traced it is a span of the one that its request id names, but
    for a stream.
    """

    __slots__ = (
        *("_began", "_clock", "_log", "_method", "_request_id", "_span", "_times"),
        "failure",
        "tenant",
    )

    def __init__(
        self,
        clock: Clock,
        log: Logger,
        method: str,
        request_id: str,
        tenant: str = "",
        times: CallTimes | None = None,
        *,
        is_stream: bool = False,
    ) -> None:
        """``tenant`` is empty where it is not known yet, ``request_id`` where it has none."""
        self.failure: status_pb2.Status | None = None
        self._clock = clock
        self._log = log
        self._method = method
        self._request_id = request_id
        self.tenant = tenant
        self._times = times
        self._span: AbstractContextManager[Any] | None = None
        self._began = clock()
        if tracing.ON and not is_stream:
            self._span = tracing.call_span(method.rpartition("/")[2], self.request_id)
            self._span.__enter__()
        # For this call alone: its context is its own, or the next call's takes its place.
        CALL.set(self)

    @property
    def request_id(self) -> str:
        """The client's id of the call, or a random one, made when it is first asked for."""
        if not self._request_id:
            self._request_id = f"{random.getrandbits(64):016x}"
        return self._request_id

    def facts(self) -> dict[str, str]:
        """Returns what the lines of the call say besides."""
        return {"request_id": self.request_id, "method": self._method, "tenant": self.tenant}

    def ended(self, error: Exception | None = None) -> None:
        """Notes that it is over, and what it raised; once."""
        reason = "OK"
        if self._span is not None:
            self._leave_span(error)
        if error is not None:
            if isinstance(error, KVStoreError):
                reason, self.failure = error.reason(), status.to_status(error)
            else:
                self._log.error("request_failed", exc_info=error)
                reason, self.failure = "INTERNAL", status.internal_status(self.request_id)
        seconds = self._clock() - self._began
        if self._times is not None:
            self._times.note(self._method, reason, seconds)
        if self._log.is_enabled_for(logging.DEBUG):
            latency_ms = round(seconds * 1e3, 3)
            self._log.debug("request_handled", reason=reason, latency_ms=latency_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool:
        del kind, traceback
        if error is None or (isinstance(error, Exception) and not isinstance(error, grpc.RpcError)):
            self.ended(error)
            return True
        self._leave_span(error)
        if isinstance(error, grpc.RpcError):
            # Its client went, or its deadline passed, before its request came: gRPC's own to end.
            self._log.debug("request_never_came")
        return False

    def _leave_span(self, error: BaseException | None) -> None:
        if self._span is not None:
            traceback = None if error is None else error.__traceback__
            self._span.__exit__(None if error is None else type(error), error, traceback)


def require_admissible(
    tenant: str, remaining: float | None, *, traffic: Traffic, longest: float, always: bool
) -> None:
    """Counts a call of a tenant, and refuse one that may not come in.

    ``remaining`` is the time to its deadline, in seconds. Raises TooManyRequests for
    what is over the tenant's rate, unless it comes in ``always``, or InvalidField for a
    deadline that is missing, above ``longest`` seconds or passed. Of what changes something
    that is ``max_deadline``: tombstones are kept for longer than that, so no such call may
    live longer. Lanes do the same at hand: ``LaneCalls._call``.
    """
    traffic.admit(tenant, always=always)
    require_deadline(remaining, longest)


def require_deadline(remaining: float | None, longest: float) -> None:
    """Raises InvalidField as :func:`require_admissible` does for a deadline."""
    if remaining is None or remaining > longest * DEADLINE_ROUNDING:
        maximum = f"{longest:g} s"
        raise InvalidField(field="deadline", why="missing or too long", maximum=maximum)
    if remaining <= 0:
        raise InvalidField(field="deadline", value="passed", why="the call had not begun")
