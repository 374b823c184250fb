"""Single fields of a request, checked. Each raises InvalidField or LimitExceeded.

Values of any length may come; none that is refused for its length is repeated in
the error.
"""

from collections.abc import Sequence, Sized
from typing import NoReturn

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from kvstore.core import Limits
from kvstore.core.values.tokens import token_count
from kvstore.errors import InvalidField, LimitExceeded

ID_BYTES = 16
NANOSECONDS = 1_000_000_000
# A third of what a Duration may be, so that what is left of one always is a Duration too.
MAX_SECONDS = 100_000_000_000


def require_present(message: Message, *names: str) -> None:
    """Refuse a message that lacks one of the named submessages."""
    for name in names:
        if not message.HasField(name):
            raise InvalidField(field=name, why="missing")


def checked_bytes(field: str, value: bytes, *, least: int, most: int) -> bytes:
    """Return ``value`` if its length is within bounds."""
    if not least <= len(value) <= most:
        bounds = f"{least} bytes" if least == most else f"{least} to {most} bytes"
        raise InvalidField(field=field, value=f"{len(value)} bytes", why=f"not {bounds}")
    return value


def random_id(field: str, value: bytes) -> bytes:
    """Return an id of 128 random bits."""
    if len(value) == ID_BYTES:
        return value
    return checked_bytes(field, value, least=ID_BYTES, most=ID_BYTES)


def missing_id(field: str) -> NoReturn:
    """Refuse zero in the place of an id that the client chooses: it forgot to."""
    raise InvalidField(field=field, value=0, why="missing")


def name(field: str, value: str, limits: Limits) -> str:
    """Return a printable name for people, or one of a type or feature; it may be empty."""
    checked_bytes(field, value.encode(), least=0, most=limits.max_name_bytes)
    # It goes to terminals and logs, which act on some characters.
    if not value.isprintable():
        raise InvalidField(field=field, why="not printable")
    return value


def chosen_name(field: str, value: str, limits: Limits) -> str:
    """Return a name that the client chose; an empty one is one that it forgot."""
    if not value:
        raise InvalidField(field=field, why="missing")
    return name(field, value, limits)


def names(field: str, values: Sequence[str], limits: Limits) -> list[str]:
    """Return the names of features."""
    if len(values) > limits.max_features:
        maximum = limits.max_features
        raise LimitExceeded(limit="max_features", maximum=maximum, value=len(values))
    return [name(field, each, limits) for each in values]


def seconds(field: str, value: Duration) -> float:
    """Return a span in seconds, zero or more, at most ``MAX_SECONDS``."""
    whole = 0 <= value.seconds < MAX_SECONDS
    if not whole or not 0 <= value.nanos < NANOSECONDS:
        raise InvalidField(field=field, value=f"{value.seconds} s", why="not a span of time")
    return value.seconds + value.nanos / NANOSECONDS


def tokens(value: bytes, position: int, limits: Limits) -> bytes:
    """Return the token bytes of a sequence that start at ``position`` (in tokens)."""
    count = position + token_count(value)
    if count > limits.max_tokens:
        raise LimitExceeded(limit="max_tokens", maximum=limits.max_tokens, value=count)
    return value


def require_batch(items: Sized, limits: Limits) -> None:
    """Refuse a batch of more entries than the limit."""
    if len(items) > limits.max_batch_size:
        maximum = limits.max_batch_size
        raise LimitExceeded(limit="max_batch_size", maximum=maximum, value=len(items))
