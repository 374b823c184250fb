"""Pages whose bytes identify their tokens, their prefix and their writer.

Every byte depends on the path before the page, on its own tokens, on the writer and on the number
of the write. So a page of another prefix, a torn or partial write and a changed byte are all
detected, and the wrong page is identified.
"""

import struct
from collections.abc import Iterator
from hashlib import blake2b, shake_256
from typing import NamedTuple

TOKEN_BYTES = 4
PATH_BYTES = 16
START = bytes(PATH_BYTES)
# Writer, number of the write, digest of the path before, number of tokens, and the tokens.
HEADER = struct.Struct(f"<16sI{PATH_BYTES}sI")


class WrongPage(Exception):
    """A page without the bytes that were written for its tokens."""


class Stamp(NamedTuple):
    """One write of one page: the writer, and the number of its write."""

    writer: str
    number: int


class PageKey(NamedTuple):
    """The key of a page: the digest of the path before it, and its own tokens, packed."""

    before: bytes
    tokens: bytes


def page_keys(tokens: bytes, page_tokens: int) -> Iterator[PageKey]:
    """Yields the key of each page of a sequence; the last page may be partial."""
    before, width = START, page_tokens * TOKEN_BYTES
    for start in range(0, len(tokens), width):
        key = PageKey(before, tokens[start : start + width])
        yield key
        before = blake2b(before + key.tokens, digest_size=PATH_BYTES).digest()


def next_token_of(tokens: bytes) -> int:
    """Returns the only token that may follow a sequence, so that a wrong one is detected."""
    return int.from_bytes(blake2b(tokens, digest_size=TOKEN_BYTES).digest(), "little")


def stamped(key: PageKey, stamp: Stamp, size: int) -> bytes:
    """Returns the content of a page of ``size`` bytes by one write."""
    count = len(key.tokens) // TOKEN_BYTES
    header = HEADER.pack(stamp.writer.encode(), stamp.number, key.before, count) + key.tokens
    return header + shake_256(header).digest(size - len(header))


def stamp_of(content: bytes, key: PageKey, *, token_count: int | None = None) -> Stamp:
    """Returns the one write that all bytes of a page come from.

    With ``token_count`` only that many first tokens have to be the key's, as in a source page.
    Raises :class:`WrongPage`, with the content that was found.
    """
    name, number, before, count = HEADER.unpack_from(content)
    writer = name.rstrip(b"\0").decode("ascii", "replace")
    there = f"{writer!r}'s write {number}"
    if count * TOKEN_BYTES > len(content) - HEADER.size:
        raise WrongPage(f"no stamp: {content[: HEADER.size].hex()}")
    tokens = content[HEADER.size : HEADER.size + count * TOKEN_BYTES]
    whole = stamped(PageKey(before, tokens), Stamp(writer, number), len(content))
    if content != whole:
        first = next(at for at, (a, b) in enumerate(zip(content, whole, strict=True)) if a != b)
        last = next(at for at in range(len(whole) - 1, -1, -1) if content[at] != whole[at])
        raise WrongPage(f"bytes {first} to {last} do not belong to {there}")
    if before != key.before:
        raise WrongPage(f"a page of another prefix: {there}")
    wanted = key.tokens if token_count is None else key.tokens[: token_count * TOKEN_BYTES]
    if tokens[: len(wanted)] != wanted or (token_count is None and len(tokens) != len(wanted)):
        raise WrongPage(f"a page of other tokens: {there}")
    return Stamp(writer, number)
