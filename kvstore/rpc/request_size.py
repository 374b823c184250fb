"""How many bytes a request may have before it is parsed."""

from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor

from kvstore.core import Limits
from kvstore.errors import LimitExceeded


def require_size(size: int, limit: str, limits: Limits) -> None:
    """Raise LimitExceeded for a request of more bytes than the named limit."""
    maximum = getattr(limits, limit)
    if size > maximum:
        raise LimitExceeded(limit=limit, maximum=maximum, value=size)


def size_limit_of(method: str) -> str:
    """Return the name of the limit on a method's requests.

    ``method`` is the path of a call, as in ``/kvstore.v1.LeaseService/GrantLease``.
    Requests with token ids may be as long as any message.
    """
    name = method.removeprefix("/").replace("/", ".")
    request = descriptor_pool.Default().FindMethodByName(name).input_type
    return "max_message_bytes" if _has_tokens(request) else "max_short_message_bytes"


def _has_tokens(message: Descriptor) -> bool:
    inner = (each.message_type for each in message.fields if each.message_type is not None)
    return "tokens" in message.fields_by_name or any(map(_has_tokens, inner))
