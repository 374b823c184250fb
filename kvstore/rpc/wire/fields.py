"""Single fields of a request, checked, and the pages of a list.

Each check raises InvalidField or LimitExceeded. A value of any length may come. No error repeats
a value that is refused for its length.
"""

import binascii
import secrets
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Sequence, Sized
from hashlib import blake2b
from hmac import compare_digest
from typing import Generic, NamedTuple, NoReturn, TypeVar

from google.protobuf.duration_pb2 import Duration

from kvstore.core import Identity, Limits
from kvstore.errors import InvalidField, LimitExceeded

ID_BYTES = 16
NANOSECONDS = 1_000_000_000
# A third of what a Duration may be, so that what is left of one always is a Duration too.
MAX_SECONDS = 100_000_000_000


def checked_bytes(field: str, value: bytes, *, least: int, most: int) -> bytes:
    """Returns ``value`` if its length is within bounds."""
    if not least <= len(value) <= most:
        bounds = f"{least} bytes" if least == most else f"{least} to {most} bytes"
        raise InvalidField(field=field, value=f"{len(value)} bytes", why=f"not {bounds}")
    return value


def random_id(field: str, value: bytes) -> bytes:
    """Returns an id of 128 random bits."""
    if len(value) == ID_BYTES:
        return value
    return checked_bytes(field, value, least=ID_BYTES, most=ID_BYTES)


def missing_id(field: str) -> NoReturn:
    """Refuses zero in the place of an id that the client chooses: it forgot to."""
    raise InvalidField(field=field, value=0, why="missing")


def name(field: str, value: str, limits: Limits) -> str:
    """Returns a printable name for people, or one of a type or feature; it may be empty."""
    checked_bytes(field, value.encode(), least=0, most=limits.max_name_bytes)
    # It goes to terminals and logs, which act on some characters.
    if not value.isprintable():
        raise InvalidField(field=field, why="not printable")
    return value


def chosen_name(field: str, value: str, limits: Limits) -> str:
    """Returns a name that the client chose; an empty one is one that it forgot."""
    if not value:
        raise InvalidField(field=field, why="missing")
    return name(field, value, limits)


def names(field: str, values: Sequence[str], limits: Limits) -> list[str]:
    """Returns the names of features."""
    if len(values) > limits.max_features:
        maximum = limits.max_features
        raise LimitExceeded(limit="max_features", maximum=maximum, value=len(values))
    return [name(field, each, limits) for each in values]


def seconds(field: str, value: Duration) -> float:
    """Returns a span in seconds, zero or more, at most ``MAX_SECONDS``."""
    whole = 0 <= value.seconds < MAX_SECONDS
    if not whole or not 0 <= value.nanos < NANOSECONDS:
        raise InvalidField(field=field, value=f"{value.seconds} s", why="not a span of time")
    return value.seconds + value.nanos / NANOSECONDS


def require_batch(items: Sized, limits: Limits) -> None:
    """Refuses a batch of more entries than the limit."""
    if len(items) > limits.max_batch_size:
        maximum = limits.max_batch_size
        raise LimitExceeded(limit="max_batch_size", maximum=maximum, value=len(items))


DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
NUMBER_BYTES = 8
SEAL_BYTES = 16
KEY_BYTES = 32
# Base64 of seal and number, without padding.
TOKEN_CHARACTERS = (SEAL_BYTES + NUMBER_BYTES) // 3 * 4

Entry = TypeVar("Entry")


class Page(NamedTuple, Generic[Entry]):
    """Some entries of a list, and the token of the next page, empty at the end."""

    entries: Sequence[Entry]
    next_page_token: str


def page_size_of(value: int) -> int:
    """Returns how many entries to answer; raises :class:`InvalidField` below zero."""
    if value < 0:
        raise InvalidField(field="page_size", value=value, why="negative")
    return min(value, MAX_PAGE_SIZE) or DEFAULT_PAGE_SIZE


def fresh_key() -> bytes:
    """Returns a key for the tokens of a server, good until it ends."""
    return secrets.token_bytes(KEY_BYTES)


class PageTokens:
    """Makes and reads the page tokens of one list of one caller.

    The number of the last entry answered, sealed: it counts entries of all tenants,
    and a token tells nobody. The token of another list or tenant, or of a server
    that is gone, is refused. ``key`` is from :func:`fresh_key`.
    """

    def __init__(self, key: bytes, list_name: bytes, identity: Identity) -> None:
        reader = b"admin" if identity.admin else b"tenant " + identity.tenant.encode()
        scope = b"%d %b%b" % (len(list_name), list_name, reader)
        self._key = blake2b(scope, key=key, digest_size=KEY_BYTES).digest()

    def make(self, number: int) -> str:
        """Returns the token of the page after the entry of ``number``, below 2**64."""
        seal = self._seal(number)
        return urlsafe_b64encode(seal + self._mask(seal, number).to_bytes(NUMBER_BYTES)).decode()

    def after(self, last: int) -> str:
        """Returns the token of the page after the entry of a number; of 0, "": there is none."""
        return self.make(last) if last else ""

    def number(self, token: str) -> int:
        """Returns what :meth:`make` was given, zero for no token.

        Raises :class:`InvalidField` for others' tokens.
        """
        if not token:
            return 0
        try:
            if len(token) != TOKEN_CHARACTERS:
                raise InvalidField(field="page_token", why="unknown")
            decoded = urlsafe_b64decode(token.encode())
        except (binascii.Error, ValueError):
            raise InvalidField(field="page_token", why="unknown") from None
        seal, masked = decoded[:SEAL_BYTES], decoded[SEAL_BYTES:]
        number = self._mask(seal, int.from_bytes(masked[:NUMBER_BYTES]))
        if len(masked) != NUMBER_BYTES or not compare_digest(seal, self._seal(number)):
            raise InvalidField(field="page_token", why="unknown")
        return number

    def _seal(self, number: int) -> bytes:
        value = number.to_bytes(NUMBER_BYTES)
        return blake2b(value, key=self._key, person=b"seal", digest_size=SEAL_BYTES).digest()

    def _mask(self, seal: bytes, number: int) -> int:
        """Returns the number hidden, or found again."""
        mask = blake2b(seal, key=self._key, person=b"mask", digest_size=NUMBER_BYTES).digest()
        return number ^ int.from_bytes(mask)

    def page(
        self,
        entries: Sequence[Entry],
        number_of: Callable[[Entry], int],
        *,
        page_size: int,
        page_token: str,
    ) -> Page[Entry]:
        """Returns the page of ``entries``, all there are, that the token begins.

        Entries stand by their numbers, which grow from 1 and are never used again:
        a list goes on behind an entry that has gone since. Raises
        :class:`InvalidField` for a token that is not ours.
        """
        count = page_size_of(page_size)
        start = bisect_right(entries, self.number(page_token), key=number_of)
        chosen = entries[start : start + count]
        more = len(entries) > start + count
        return Page(chosen, self.make(number_of(chosen[-1])) if more else "")
