"""The reason of a refusal, as its details say it."""

from collections.abc import Iterable

from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2

from kvstore.v1 import errors_pb2

# No refusal may have one of these.
UNKNOWN = "UNKNOWN"
WRONG = frozenset({UNKNOWN, "INTERNAL"})


def reason_of(details: Iterable[Any]) -> str:
    """Returns the reason of the only ErrorInfo, or UNKNOWN if that is none of the contract's."""
    infos = [each for each in details if each.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    info = error_details_pb2.ErrorInfo()
    if len(infos) == 1:
        infos[0].Unpack(info)
    known = f"ERROR_REASON_{info.reason}" in errors_pb2.ErrorReason.keys()  # noqa: SIM118  # no dict
    return info.reason if info.domain == "kvstore" and known else UNKNOWN
