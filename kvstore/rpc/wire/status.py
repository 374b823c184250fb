"""Errors on the wire: one table from error classes to status codes.

Every status that our code sends has exactly one ``ErrorInfo``, and a
``RetryInfo`` where the same call may succeed later.
"""

from typing import NoReturn

import grpc
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from kvstore import errors
from kvstore.errors import KVStoreError
from kvstore.v1 import errors_pb2

DOMAIN = "kvstore"
REASON_PREFIX = "ERROR_REASON_"
# A status travels in HTTP/2 headers, of which gRPC takes 8 KiB: a call whose status
# is longer fails at the client with another error.
MAX_VALUE_CHARACTERS = 256
MAX_MESSAGE_CHARACTERS = 1024

CODES: dict[type[KVStoreError], grpc.StatusCode] = {
    errors.InvalidField: grpc.StatusCode.INVALID_ARGUMENT,
    errors.LimitExceeded: grpc.StatusCode.INVALID_ARGUMENT,
    errors.CredentialRequired: grpc.StatusCode.UNAUTHENTICATED,
    errors.PermissionDenied: grpc.StatusCode.PERMISSION_DENIED,
    errors.StaleEpoch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.LeaseNotFound: grpc.StatusCode.NOT_FOUND,
    errors.LeaseExpired: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NotAttached: grpc.StatusCode.FAILED_PRECONDITION,
    errors.NamespaceNotFound: grpc.StatusCode.NOT_FOUND,
    errors.LayoutMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PinNotFound: grpc.StatusCode.NOT_FOUND,
    errors.ReservationNotFound: grpc.StatusCode.NOT_FOUND,
    errors.IdReused: grpc.StatusCode.ALREADY_EXISTS,
    errors.Tombstoned: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PoolExhausted: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.InsertExceedsReservation: grpc.StatusCode.INVALID_ARGUMENT,
    errors.ParentNotCovered: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ParentDetached: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PrefixNotCached: grpc.StatusCode.FAILED_PRECONDITION,
    errors.QuotaExceeded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.PageCorrupt: grpc.StatusCode.DATA_LOSS,
    errors.StoreDraining: grpc.StatusCode.UNAVAILABLE,
    errors.FeatureUnsupported: grpc.StatusCode.UNIMPLEMENTED,
    errors.PeerRefused: grpc.StatusCode.PERMISSION_DENIED,
}


def to_status(error: KVStoreError) -> status_pb2.Status:
    """Returns the status of an error: its code, its message, ErrorInfo, RetryInfo."""
    # A subclass made for one place, such as storage's, goes as its nearest listed class.
    listed = next(each for each in type(error).__mro__ if each in CODES)
    reason = listed.reason()
    return _status(CODES[listed], str(error), reason, error.metadata, error.retry_after_s)


def internal_status(request_id: str) -> status_pb2.Status:
    """Returns the status of a bug of ours: nothing of it but where the log has it."""
    reason = errors_pb2.ErrorReason.Name(errors_pb2.ERROR_REASON_INTERNAL)
    message = f"a bug of the store: its log has the details under request id {request_id}"
    metadata = {"request_id": request_id}
    return _status(
        grpc.StatusCode.INTERNAL, message, reason.removeprefix(REASON_PREFIX), metadata, None
    )


def abort(context: grpc.ServicerContext, error: KVStoreError) -> NoReturn:
    """Ends a call with an error. Raises whatever gRPC raises to leave the handler."""
    abort_with(context, to_status(error))


def abort_with(context: grpc.ServicerContext, status: status_pb2.Status) -> NoReturn:
    """Ends a call with a status. Raises whatever gRPC raises to leave the handler."""
    context.abort_with_status(rpc_status.to_status(status))
    raise AssertionError  # abort_with_status never returns


def _status(
    code: grpc.StatusCode,
    message: str,
    reason: str,
    metadata: dict[str, str],
    retry_after_s: float | None,
) -> status_pb2.Status:
    number: int = code.value[0]
    status = status_pb2.Status(code=number, message=message[:MAX_MESSAGE_CHARACTERS])
    values = {key: value[:MAX_VALUE_CHARACTERS] for key, value in metadata.items()}
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=values)
    details: list[Message] = [info]
    if retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(retry_after_s * 1e9))
        details.append(retry)
    for detail in details:
        status.details.add().Pack(detail)
    return status
