"""The number of a step's operations, found without a parse of the request."""

from kvstore.core import Limits
from kvstore.errors import InvalidField, LimitExceeded
from kvstore.rpc.wire.varint import FIXED32, FIXED64, LENGTH_DELIMITED, VARINT, read_varint
from kvstore.v1 import prefix_cache_pb2 as pb

OPERATIONS_KEY = pb.RunStepRequest.OPERATIONS_FIELD_NUMBER << 3 | LENGTH_DELIMITED
# The least bytes of an operation: its key, and a length of zero.
LEAST_BYTES = 2
# Fields of a request beside its operations: more than there are, for later versions.
OTHER_FIELDS = 16
# Bytes of the values that always have as many.
FIXED_BYTES = {FIXED64: 8, FIXED32: 4}


def require_operation_count(body: bytes, limits: Limits) -> None:
    """Raises LimitExceeded for the body of a step with more operations than ``max_batch_size``.

    Raises InvalidField if it has more than a few other fields.

    An empty operation takes two bytes in a body, and over forty once it is parsed. A body that is
    no request may pass, since its parser refuses it. Costs a microsecond for each operation.
    """
    most, length = limits.max_batch_size, len(body)
    if length <= LEAST_BYTES * most:
        return
    count, others, place = 0, 0, 0
    try:
        while place < length:
            key, place = read_varint(body, place)
            if key == OPERATIONS_KEY:
                count += 1
            else:
                others += 1
            if count > most:
                raise LimitExceeded(limit="max_batch_size", maximum=most, value=count)
            if others > OTHER_FIELDS:
                raise InvalidField(field="request", value=others, why="too many unknown fields")
            place = _after_value(body, place, key & 7)
    except IndexError:
        # The parser finds that it ends too early.
        return


def _after_value(body: bytes, place: int, kind: int) -> int:
    """Returns the place after a field's value. A group has none: its fields count as others."""
    if kind == LENGTH_DELIMITED:
        size, place = read_varint(body, place)
        return place + size
    if kind == VARINT:
        return read_varint(body, place)[1]
    return place + FIXED_BYTES.get(kind, 0)
