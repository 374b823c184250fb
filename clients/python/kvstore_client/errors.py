"""Every error of the client: one class for each reason of the protocol.

::

    StoreError                        a call to the store failed
    ├── DeviceUnavailable             this process cannot use the memory of the pages
    ├── PageRecycled                  the store reused a held page's slot, by a bug
    ├── StoreUnavailable              the store did not answer: absent, stopped, cut off
    │   ├── StoreTimedOut             the store did not answer within the deadline
    │   └── ClientClosed              this client was closed
    └── StoreRefused                  the store answered with a reason
        ├── InvalidField              a field is missing, malformed or out of range
        ├── LimitExceeded             a size is over a published limit
        ├── CredentialRequired        no credential, or one of another epoch
        ├── PermissionDenied          the identity may not do this
        ├── StaleEpoch                the store restarted
        ├── LeaseNotFound             the lease ended
        ├── LeaseExpired              the lease is past its TTL: it may only release
        ├── NotAttached               the lease has no living process
        ├── NamespaceNotFound         no such namespace
        ├── LayoutMismatch            the namespace exists with another page layout
        ├── PinNotFound               the lease has no such pin
        ├── ReservationNotFound       the lease has no such reservation
        ├── IdReused                  the id was used with other arguments
        ├── Tombstoned                the id was released before the call arrived
        ├── PoolExhausted             no slots are available now
        ├── InsertExceedsReservation  the pages are beyond the reservation
        ├── ParentNotCovered          the path above is not covered
        ├── ParentDetached            the path above was removed
        ├── QuotaExceeded             a bounded table of the caller is full
        ├── StoreDraining             the store is starting or draining
        ├── FeatureUnsupported        this server does not have the feature
        ├── PageCorrupt               a page's bytes are not what was written
        ├── NamedPinNotFound          no such named pin
        ├── PrefixNotCached           the whole prefix was required and less is cached
        ├── PeerRefused               the attach socket refuses this process
        └── Internal                  a bug of the store
    ForkedClient                      the client belongs to the parent process
    NotHostMemory                     the pages are in a device's memory: use tensors

The class name in upper snake case is the ``ErrorReason``. A reason that this
client does not know is raised as :class:`StoreRefused` itself.
"""

import contextlib
import re
from collections.abc import Sequence
from typing import ClassVar

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2

from kvstore_client.values.page_runs import PageRef

DOMAIN = "kvstore"
# The metadata in which gRPC carries a google.rpc.Status.
DETAILS_KEY = "grpc-status-details-bin"


class ForkedClient(RuntimeError):
    """This process is a fork of the client's process: make another client here.

    It is no :class:`StoreError`, so callers do not treat it as a miss.
    """


class NotHostMemory(TypeError):
    """The pages are in a device's memory, which has tensors and no bytes for the host."""


class StoreError(Exception):
    """A call to the store failed. On a request path this is a miss."""


class DeviceUnavailable(StoreError):
    """This process cannot use the memory of the pages; the message says why.

    cupy, torch with CUDA, the driver or the device is missing, or CUDA refused.
    """


class PageRecycled(StoreError):
    """The store reused the slots of held ``pages``, by a bug.

    Drop whatever was computed from them.
    """

    def __init__(self, pages: Sequence[PageRef]) -> None:
        self.pages = tuple(pages)
        first = pages[0]
        super().__init__(
            f"{len(pages)} pages were recycled while they were held, "
            f"the first in slot {first.slot} of extent {first.extent_id}"
        )


class StoreUnavailable(StoreError):
    """The store did not answer. The call may have taken effect."""


class StoreTimedOut(StoreUnavailable):
    """The store did not answer within the call's deadline."""


class ClientClosed(StoreUnavailable):
    """This client was closed."""


class StoreRefused(StoreError):
    """The store answered with a reason, and changed nothing.

    ``reason`` is the protocol's. ``metadata`` has the values that the message names.
    ``retry_after_s`` is set if the same call may succeed later.
    """

    by_reason: ClassVar[dict[str, type["StoreRefused"]]] = {}

    def __init_subclass__(cls) -> None:
        StoreRefused.by_reason[re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()] = cls

    def __init__(
        self,
        message: str,
        *,
        reason: str = "",
        metadata: dict[str, str] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.metadata = metadata or {}
        self.retry_after_s = retry_after_s


class InvalidField(StoreRefused):
    """A field is missing, malformed or out of range."""


class LimitExceeded(StoreRefused):
    """A size is over a limit of GetCapabilities."""


class CredentialRequired(StoreRefused):
    """The store does not know the credential: it restarted after it issued it."""


class PermissionDenied(StoreRefused):
    """The call needs another identity than the caller's."""


class StaleEpoch(StoreRefused):
    """The store restarted and has nothing of the time before."""


class LeaseNotFound(StoreRefused):
    """The lease ended or never existed."""


class LeaseExpired(StoreRefused):
    """The lease is past its TTL: it may release and be revoked, nothing else."""


class NotAttached(StoreRefused):
    """No living process is attached under the lease."""


class NamespaceNotFound(StoreRefused):
    """No such namespace. An operator may have deleted it."""


class LayoutMismatch(StoreRefused):
    """The namespace exists with another page layout."""


class PinNotFound(StoreRefused):
    """The lease has no such pin."""


class ReservationNotFound(StoreRefused):
    """The lease has no such reservation."""


class IdReused(StoreRefused):
    """The id was used with other arguments: a bug of the client."""


class Tombstoned(StoreRefused):
    """The id was released or aborted before the call arrived."""


class PoolExhausted(StoreRefused):
    """Not enough slots are available now: compute without caching."""


class InsertExceedsReservation(StoreRefused):
    """The insert asks for pages beyond its reservation."""


class ParentNotCovered(StoreRefused):
    """The pages do not follow a path that the insert's base covers."""


class ParentDetached(StoreRefused):
    """The path above was removed: pages that were computed on it are not published."""


class QuotaExceeded(StoreRefused):
    """A quota or a bounded table of the caller is full."""


class StoreDraining(StoreRefused):
    """The store is starting or draining."""


class FeatureUnsupported(StoreRefused):
    """This server does not have the feature."""


class PageCorrupt(StoreRefused):
    """A page's bytes are not what was written."""


class NamedPinNotFound(StoreRefused):
    """No such named pin."""


class PrefixNotCached(StoreRefused):
    """The whole prefix was required and less is cached."""


class PeerRefused(StoreRefused):
    """The attach socket refuses this process."""


class Internal(StoreRefused):
    """A bug of the store; its log has more under the request id."""


def error_of_status(status: status_pb2.Status) -> StoreError:
    """Returns the typed error of a ``google.rpc.Status``.

    Returns :class:`StoreUnavailable` if the status has no reason of the store, and
    :class:`StoreTimedOut` if the call's deadline had passed.
    """
    info = error_details_pb2.ErrorInfo()
    retry = error_details_pb2.RetryInfo()
    retry_after_s = None
    for detail in status.details:
        if detail.Is(retry.DESCRIPTOR):
            detail.Unpack(retry)
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
        elif detail.Is(info.DESCRIPTOR):
            detail.Unpack(info)
    if info.domain != DOMAIN:
        return StoreUnavailable(status.message or "the store did not answer")
    if {"field": "deadline", "value": "passed"}.items() <= dict(info.metadata).items():
        return StoreTimedOut(f"{info.reason}: {status.message}")
    return StoreRefused.by_reason.get(info.reason, StoreRefused)(
        f"{info.reason}: {status.message}",
        reason=info.reason,
        metadata=dict(info.metadata),
        retry_after_s=retry_after_s,
    )


def error_of_call(error: grpc.RpcError) -> StoreError:
    """Returns the typed error of a gRPC call that failed."""
    assert isinstance(error, grpc.Call)  # all that a blocking call raises
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY:
            # Bytes that are no Status are another program's: they have no reason of the store.
            with contextlib.suppress(DecodeError):
                return error_of_status(status_pb2.Status.FromString(value))
    text = f"{error.code().name}: {error.details()}"
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return StoreTimedOut(text)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return FeatureUnsupported(text, reason="FEATURE_UNSUPPORTED")
    return StoreUnavailable(text)


# After one of these errors a lease takes no new work. Open holds may be finished.
SESSION_OVER = (
    CredentialRequired,
    LeaseExpired,
    LeaseNotFound,
    NotAttached,
    StaleEpoch,
    StoreDraining,
)
