"""The digests of a path's pages, computed on demand and remembered by the path's nodes."""

from typing import NamedTuple

from kvstore.core.index.node import Node, PageHashes, Position
from kvstore.core.values.group_pages import is_group_page
from kvstore.core.values.page_hash import page_digest
from kvstore.core.values.segments import segment_start

NOTHING = PageHashes(b"", (), ())


class PageName(NamedTuple):
    """A page's digest, and that of the first page of its segment."""

    digest: bytes
    segment: bytes


class PathHashes:
    """The digests of the pages of one path, from page ``start`` through ``end``.

    They depend on tokens alone, so they can be computed outside the owner's mutex. Each page
    costs about a microsecond, once. For one thread at a time.
    """

    __slots__ = ("_known", "_segment", "_tokens", "_width", "start")

    def __init__(
        self, start: int, digest: bytes, tokens: bytes, width: int, segment: bytes = b""
    ) -> None:
        """``digest`` is that of the page before ``tokens``. A page takes ``width`` bytes.

        ``segment`` is the digest of the first page of the segment of the page before ``tokens``.
        """
        self.start = start
        self._segment = segment
        self._tokens = tokens
        self._width = width
        self._known = [digest]

    @property
    def end(self) -> int:
        """Pages from the sequence's beginning through the last one."""
        return self.start - (-len(self._tokens) // self._width)

    @property
    def known_end(self) -> int:
        """Pages from the beginning through the last one whose digest was computed."""
        return self.start + len(self._known) - 1

    def through(self, end: int) -> bytes:
        """Returns the digest of the page that ends at ``end``, which is not before ``start``.

        At ``start`` itself it is the digest of the first page's parent.
        """
        for page in range(self.known_end, end):
            self._known.append(page_digest(self._known[-1], self.tokens(page, page + 1)))
        return self._known[end - self.start]

    def name(self, end: int) -> PageName:
        """Returns the name of the page that ends at ``end``, which is not before ``start``.

        A page of a KV cache group is in the segment of its page of the path.
        """
        digest, page = self.through(end), max(end - 1, 0)
        if page >= self.start and is_group_page(self.tokens(page, end)):
            page -= 1
        first = segment_start(page)
        return PageName(digest, self._segment if first < self.start else self.through(first + 1))

    def tokens(self, begin: int, end: int) -> bytes:
        """Returns the token bytes of the pages from ``begin`` through ``end``."""
        start, width = self.start, self._width
        return self._tokens[(begin - start) * width : (end - start) * width]

    def between(self, begin: int, end: int) -> list[bytes]:
        """Returns the digests of the pages from ``begin`` through ``end``."""
        self.through(end)
        return self._known[begin - self.start + 1 : end - self.start + 1]


def hashes_to(at: Position, beyond: bytes = b"", *, since: int | None = None) -> PathHashes:
    """Returns the digests of the pages through ``at``, from the first one that no node knows.

    Continues with those of ``beyond``, the tokens after ``at``. With ``since``, starts at that
    page at the latest, even if later digests are known. Costs a step for each node, and a copy
    of tokens.
    """
    tree = at.node.tree
    parts = [beyond]
    node: Node | None = at.node
    pages = at.pages
    while node is not None:
        known = min(node.page_hashes.pages, pages) if node.page_hashes is not None else 0
        if since is not None:
            known = min(known, max(since - node.start, 0))
        parts.append(node.edge[known * tree.width : pages * tree.width])
        if node.page_hashes is not None and known:
            start, digest = node.start + known, node.page_hashes.through(known)
            segment = _hash_above(node, segment_start(start - 1))
            return PathHashes(start, digest, b"".join(reversed(parts)), tree.width, segment)
        node = node.parent
        pages = 0 if node is None else len(node.slots)
    digest = tree.digest
    return PathHashes(0, digest, b"".join(reversed(parts)), tree.width)


def _hash_above(node: Node, page: int) -> bytes:
    """Returns the digest of a page of a node's path, which is known as those after it are."""
    while node.start > page:
        assert node.parent is not None  # the root starts at zero
        node = node.parent
    assert node.page_hashes is not None  # a digest is known only if its parent's is
    return node.page_hashes.through(page - node.start + 1)


def hash_at(at: Position) -> bytes:
    """Returns the digest of the page that ends at ``at``."""
    return hashes_to(at).through(at.depth)


def kept_end(at: Position, number: int = 0) -> int:
    """Returns the end of the path's pages that page store ``number`` is known to have."""
    node: Node | None = at.node
    pages = at.pages
    while node is not None:
        kept = min(_kept(node, number), pages)
        if kept:
            return node.start + kept
        node = node.parent
        pages = 0 if node is None else len(node.slots)
    return 0


def remember(at: Position, digests: PathHashes, kept: int, number: int = 0) -> None:
    """Stores computed digests in the nodes through ``at``, and that a page store has pages.

    Page store ``number`` has ``kept`` pages from the beginning. Stores nothing for pages below a
    page whose digest is missing.
    """
    for node, pages in _path(at, 0 if kept else digests.start):
        known = node.page_hashes or NOTHING
        have, end = known.pages, min(pages, digests.known_end - node.start)
        if have < pages and node.start + have < digests.start:
            return
        hashes = known.hashes
        if end > have:
            hashes += b"".join(digests.between(node.start + have, node.start + end))
        if hashes:
            now = min(kept - node.start, max(have, end), pages)
            losses = node.tree.losses
            stored = tuple(
                max(_kept(node, each), now) if each == number else _kept(node, each)
                for each in range(len(losses))
            )
            node.page_hashes = PageHashes(hashes, stored, losses)


def _kept(node: Node, number: int) -> int:
    known = node.page_hashes
    return 0 if known is None else known.kept_in(number, node.tree.losses)


def _path(at: Position, since: int) -> list[Position]:
    """Returns the nodes of a path with the number of their pages on it, from the top.

    Leaves out nodes whose pages are all among the first ``since``.
    """
    path = []
    node, pages = at
    while node.parent is not None and node.start + pages > since:
        path.append(Position(node, pages))
        node = node.parent
        pages = len(node.slots)
    return path[::-1]
