"""Pages whose bytes say which tokens they are of, and which write they come from.

A page of other tokens, one torn between two writes, and one with a changed byte
are all seen: every byte depends on all tokens through the page's end, on the
writer, and on the number of the write.
"""

from array import array
from collections.abc import Iterator
from hashlib import shake_256
from typing import NamedTuple

from kvstore_client import Namespace, NamespaceIdentity, PagedContent, PageLayout, PageRef

IDENTITY = NamespaceIdentity(b"stamped pages", display_name="stamped")
LAYOUT = PageLayout.paged(4, PagedContent(4, 2, 16, "float32"))
# A prompt's parts; prompts that begin with the same parts share their pages.
PART_PAGES = 4
PART_TOKENS = PART_PAGES * LAYOUT.page_tokens
NAME_BYTES = 12
HEADER_BYTES = 16
# A page is written piece by piece, so that one that is used too early shows as torn.
PIECE_BYTES = LAYOUT.page_bytes // 16


class Stamp(NamedTuple):
    """One write of one page: who, and the number of the write among the writer's."""

    writer: str
    number: int


class WrongPage(AssertionError):
    """A page does not hold what was written for its tokens."""


def prompt(*parts: int) -> list[int]:
    """Returns four pages of tokens for each part, and the one token that a match leaves."""
    return [part * 1000 + each for part in parts for each in range(PART_TOKENS)] + [7]


def page_count(tokens: list[int]) -> int:
    """Returns the number of whole pages."""
    return len(tokens) // LAYOUT.page_tokens


def stamped(tokens: list[int], page: int, stamp: Stamp) -> bytes:
    """Returns what a write puts into a page of a sequence."""
    header = stamp.writer.encode().ljust(NAME_BYTES, b"\0") + stamp.number.to_bytes(4, "little")
    assert len(header) == HEADER_BYTES
    key = array("I", tokens[: (page + 1) * LAYOUT.page_tokens]).tobytes()
    return header + shake_256(header + key).digest(LAYOUT.page_bytes - HEADER_BYTES)


def write_page(view: memoryview, tokens: list[int], page: int, stamp: Stamp) -> None:
    """Writes a page of a sequence, piece by piece."""
    content = stamped(tokens, page, stamp)
    for start in range(0, len(content), PIECE_BYTES):
        view[start : start + PIECE_BYTES] = content[start : start + PIECE_BYTES]


def stamp_of(content: bytes, tokens: list[int], page: int) -> Stamp:
    """Returns the one write that all bytes of a page come from; raises WrongPage."""
    name, number = content[:NAME_BYTES], content[NAME_BYTES:HEADER_BYTES]
    stamp = Stamp(
        name.rstrip(b"\0").decode("ascii", "replace"), int.from_bytes(number, byteorder="little")
    )
    if not stamp.writer.isalnum() or content != stamped(tokens, page, stamp):
        raise WrongPage(f"page {page} of the tokens from {tokens[0]} on is not whole: {stamp}")
    return stamp


def stamps_of(
    namespace: Namespace, tokens: list[int], pages: list[PageRef], *, first: int = 0
) -> list[Stamp]:
    """Return the writes of consecutive pages of a sequence, from ``first`` on; raises WrongPage."""
    return list(_stamps(namespace, tokens, pages, first))


def _stamps(
    namespace: Namespace, tokens: list[int], pages: list[PageRef], first: int
) -> Iterator[Stamp]:
    for number, page in enumerate(pages, start=first):
        yield stamp_of(bytes(namespace.page(page)), tokens, number)
