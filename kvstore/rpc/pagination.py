"""Pages of a list: how many entries, and where to go on."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from kvstore.errors import InvalidField

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
EPOCH_BYTES = 8
NUMBER_BYTES = 8

Entry = TypeVar("Entry")


class Page(NamedTuple, Generic[Entry]):
    """Some entries of a list, and the token of the next page, empty at the end."""

    entries: Sequence[Entry]
    next_page_token: str


def page_size_of(value: int) -> int:
    """Return how many entries to answer; raises :class:`InvalidField` below zero."""
    if value < 0:
        raise InvalidField(field="page_size", value=value, why="negative")
    return min(value, MAX_PAGE_SIZE) or DEFAULT_PAGE_SIZE


class PageTokens:
    """Makes and reads the page tokens of one list, within one epoch.

    Opaque to clients: the number of the last entry answered, behind the epoch
    and the list's name. The token of another list, or of a server that is gone,
    is refused.
    """

    def __init__(self, epoch: int, list_name: bytes) -> None:
        self._prefix = epoch.to_bytes(EPOCH_BYTES, "little") + list_name + b":"

    def make(self, number: int) -> str:
        """Return the token of the page after the entry of ``number``, below 2**64."""
        return urlsafe_b64encode(self._prefix + number.to_bytes(NUMBER_BYTES)).decode()

    def number(self, token: str) -> int:
        """Return what :meth:`make` was given, zero for no token.

        Raises :class:`InvalidField` for others' tokens.
        """
        if not token:
            return 0
        try:
            decoded = urlsafe_b64decode(token.encode())
        except (binascii.Error, ValueError):
            raise InvalidField(field="page_token", why="unknown") from None
        number = decoded.removeprefix(self._prefix)
        if not decoded.startswith(self._prefix) or len(number) != NUMBER_BYTES:
            raise InvalidField(field="page_token", why="unknown")
        return int.from_bytes(number)

    def page(
        self,
        entries: Sequence[Entry],
        number_of: Callable[[Entry], int],
        *,
        page_size: int,
        page_token: str,
    ) -> Page[Entry]:
        """Return the page of ``entries``, all there are, that the token begins.

        Entries stand by their numbers, which grow from 1 and are never used again:
        a list goes on behind an entry that has gone since. Raises
        :class:`InvalidField` for a token that is not ours.
        """
        count = page_size_of(page_size)
        start = bisect_right(entries, self.number(page_token), key=number_of)
        chosen = entries[start : start + count]
        more = len(entries) > start + count
        return Page(chosen, self.make(number_of(chosen[-1])) if more else "")
