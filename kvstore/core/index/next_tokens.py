"""Next tokens: the raw argmax after a sequence that ended here.

The node of the last whole page before the end stores them, by depth and by the tokens
that follow within a page. A next token exists only while all tokens before it are cached.
There are therefore at most as many for each page as the page has tokens.
"""

from collections.abc import Callable, Iterator

from kvstore.core.values.tokens import TOKEN_BYTES


class NextTokens:
    """The next tokens after one node's pages. Not thread-safe.

    ``depth`` is in pages from the sequence's beginning. ``tail`` is the bytes of the tokens
    between that depth and the end, less than a page.
    """

    __slots__ = ("_at_depth",)

    def __init__(self) -> None:
        self._at_depth: dict[int, dict[bytes, int]] = {}

    def store(self, depth: int, tail: bytes, token: int) -> None:
        """Stores a next token. The first one of an end stays."""
        self._at_depth.setdefault(depth, {}).setdefault(tail, token)

    def find(self, depth: int, tail: bytes) -> int | None:
        """Returns the next token of an end, or None."""
        return self._at_depth.get(depth, {}).get(tail)

    def cut(self, depth: int, end: int) -> None:
        """Drops the ends beyond ``depth`` of ``end`` pages, which nothing continues any more."""
        for each in range(depth + 1, end + 1):
            self._at_depth.pop(each, None)
        token = self.find(depth, b"")
        self._at_depth.pop(depth, None)
        if token is not None:
            self.store(depth, b"", token)

    def forget(self, depth: int, page: bytes, stays: Callable[[bytes], bool]) -> None:
        """Drops the ends within ``page``, gone from ``depth``, unless ``stays`` accepts their tail.

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
            if not stays(tail):
                del tails[tail]

    def divide(self, depth: int) -> "NextTokens":
        """Removes the ends through ``depth`` pages and returns them."""
        upper = NextTokens()
        for each in [each for each in self._at_depth if each <= depth]:
            upper._at_depth[each] = self._at_depth.pop(each)
        return upper

    def join(self, lower: "NextTokens | None") -> "NextTokens":
        """Adds those of the node that continues this one, all of which are below these."""
        if lower is not None:
            self._at_depth |= lower._at_depth  # noqa: SLF001 - one of its own kind
        return self

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        for depth, tails in self._at_depth.items():
            for tail in tails:
                yield depth, tail
