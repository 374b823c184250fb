"""Next tokens: what follows a sequence that ended here, as the raw argmax.

They stand on the node of the last whole page before the end, by its depth and by
the tokens that follow it within a page. An end is there only while all its tokens
are cached, so that there are at most a page's tokens of them for each page.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvstore.core.values.tokens import TOKEN_BYTES

if TYPE_CHECKING:
    from kvstore.core.children import Children
    from kvstore.core.node import Position


class Ends:
    """The next tokens that are stored after one node's pages. Not thread-safe.

    ``depth`` is in pages from the sequence's beginning; ``tail`` are the bytes of
    the end's tokens after them, less than a page.
    """

    __slots__ = ("_at_depth",)

    def __init__(self) -> None:
        self._at_depth: dict[int, dict[bytes, int]] = {}

    def store(self, depth: int, tail: bytes, token: int) -> None:
        """Store a next token; the first of an end stays."""
        self._at_depth.setdefault(depth, {}).setdefault(tail, token)

    def find(self, depth: int, tail: bytes) -> int | None:
        """Return the next token of an end, or None."""
        return self._at_depth.get(depth, {}).get(tail)

    def cut(self, depth: int, end: int) -> None:
        """Forget what lay beyond ``depth`` of ``end`` pages, which nothing continues any more."""
        for each in range(depth + 1, end + 1):
            self._at_depth.pop(each, None)
        token = self.find(depth, b"")
        self._at_depth.pop(depth, None)
        if token is not None:
            self.store(depth, b"", token)

    def forget(self, depth: int, page: bytes, siblings: "Children") -> None:
        """Forget the ends within ``page``, gone from ``depth``, that no sibling begins with.

        Looks at each end there, or at each beginning of the page, whichever are fewer.
        """
        tails = self._at_depth.get(depth)
        if not tails:
            return
        sizes = range(TOKEN_BYTES, len(page) + 1, TOKEN_BYTES)
        if len(tails) < len(sizes):
            within = [tail for tail in tails if tail and page.startswith(tail)]
        else:
            within = [page[:size] for size in sizes if page[:size] in tails]
        for tail in within:
            if not siblings.has_begun_by(tail):
                del tails[tail]

    def divide(self, depth: int) -> "Ends":
        """Take out those through ``depth`` pages, and return them."""
        upper = Ends()
        for each in [each for each in self._at_depth if each <= depth]:
            upper._at_depth[each] = self._at_depth.pop(each)
        return upper

    def join(self, lower: "Ends | None") -> "Ends":
        """Return these and those of the node that continues this one, whose are all below these."""
        if lower is not None:
            self._at_depth |= lower._at_depth  # noqa: SLF001 - one of its own kind
        return self

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for depth, tails in self._at_depth.items():
            for tail in tails:
                yield depth, tail


def find_end(at: "Position", tail: bytes) -> int | None:
    """Return the next token stored at the end of ``tail`` after ``at``, or None."""
    return None if at.node.ends is None else at.node.ends.find(at.depth, tail)


def store_end(at: "Position", tail: bytes, token: int) -> None:
    """Store a next token at the end of ``tail`` after ``at``, which MUST be cached."""
    if at.node.ends is None:
        at.node.ends = Ends()
    at.node.ends.store(at.depth, tail, token)
