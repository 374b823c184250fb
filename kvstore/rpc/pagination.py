"""Pages of a list: how many entries, and where to go on."""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from kvstore.errors import InvalidField

DEFAULT_PAGE_SIZE = 100
MAX_PAGE_SIZE = 1000
EPOCH_BYTES = 8

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

    Opaque to clients: ``place``, the bytes of the last entry answered, behind
    the epoch and the list's name. The token of another list, or of a server
    that is gone, is refused.
    """

    def __init__(self, epoch: int, list_name: bytes) -> None:
        self._prefix = epoch.to_bytes(EPOCH_BYTES, "little") + list_name + b":"

    def make(self, place: bytes) -> str:
        """Return the token of the page after ``place``."""
        return urlsafe_b64encode(self._prefix + place).decode()

    def place(self, token: str) -> bytes:
        """Return what :meth:`make` was given; raises :class:`InvalidField` for others' tokens."""
        try:
            decoded = urlsafe_b64decode(token.encode())
        except (binascii.Error, ValueError):
            raise InvalidField(field="page_token", why="unknown") from None
        if not decoded.startswith(self._prefix):
            raise InvalidField(field="page_token", why="unknown")
        return decoded.removeprefix(self._prefix)

    def page(
        self,
        entries: Sequence[Entry],
        place_of: Callable[[Entry], bytes],
        *,
        page_size: int,
        page_token: str,
    ) -> Page[Entry]:
        """Return the page of ``entries``, all there are, that the token begins.

        A token whose entry has gone since is unknown, like any other that is not
        ours: raises :class:`InvalidField`.
        """
        count = page_size_of(page_size)
        start = 0
        if page_token:
            after = self.place(page_token)
            places = [place_of(each) for each in entries]
            if after not in places:
                raise InvalidField(field="page_token", why="unknown")
            start = places.index(after) + 1
        chosen = entries[start : start + count]
        more = len(entries) > start + count
        return Page(chosen, self.make(place_of(chosen[-1])) if more else "")
