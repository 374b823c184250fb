"""The digests of a path's pages, computed as they are asked for and remembered by its nodes."""

from kvstore.core.chain import Chain
from kvstore.core.node import Node, Position
from kvstore.core.values.page_hash import page_digest


class PathDigests:
    """The digests of the pages of one path from page ``start`` on, through ``end``.

    They need nothing but tokens, so they may be computed outside the owner's mutex: about a
    microsecond a page, each once. For one thread at a time.
    """

    __slots__ = ("_known", "_tokens", "_width", "start")

    def __init__(self, start: int, digest: bytes, tokens: bytes, width: int) -> None:
        """``digest`` is of the page before ``tokens``, whose pages take ``width`` bytes each."""
        self.start = start
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
        """Return the digest of the page that ends at ``end``, which is not before ``start``.

        The parent's of the first page at ``start`` itself.
        """
        for page in range(self.known_end, end):
            self._known.append(page_digest(self._known[-1], self.tokens(page, page + 1)))
        return self._known[end - self.start]

    def tokens(self, begin: int, end: int) -> bytes:
        """Return the token bytes of the pages from ``begin`` through ``end``."""
        start, width = self.start, self._width
        return self._tokens[(begin - start) * width : (end - start) * width]

    def between(self, begin: int, end: int) -> list[bytes]:
        """Return the digests of the pages from ``begin`` through ``end``."""
        self.through(end)
        return self._known[begin - self.start + 1 : end - self.start + 1]


def digests_to(at: Position, beyond: bytes = b"", *, since: int | None = None) -> PathDigests:
    """Return the digests of the pages through ``at``, of those whose digests no node knows.

    And of those of ``beyond``, which come after it; with ``since`` of all pages from there
    on, known or not. Cost: a step a node, and a copy of tokens.
    """
    index = at.node.namespace.index
    parts = [beyond]
    node: Node | None = at.node
    pages = at.pages
    while node is not None:
        known = min(node.chain.pages, pages) if node.chain is not None else 0
        if since is not None:
            known = min(known, max(since - node.start, 0))
        parts.append(node.edge[known * index.width : pages * index.width])
        if node.chain is not None and known:
            digest = node.chain.digest(known)
            return PathDigests(node.start + known, digest, b"".join(reversed(parts)), index.width)
        node = node.parent
        pages = 0 if node is None else len(node.slots)
    digest = at.node.namespace.digest
    return PathDigests(0, digest, b"".join(reversed(parts)), index.width)


def digest_at(at: Position) -> bytes:
    """Return the digest of the page that ends at ``at``."""
    return digests_to(at).through(at.depth)


def kept_end(at: Position) -> int:
    """Return through where a path's pages are known to be in tier 3."""
    node: Node | None = at.node
    pages = at.pages
    while node is not None:
        kept = min(_kept(node), pages)
        if kept:
            return node.start + kept
        node = node.parent
        pages = 0 if node is None else len(node.slots)
    return 0


def remember(at: Position, digests: PathDigests, kept: int) -> None:
    """Let the nodes through ``at`` know the digests that were computed, and that pages are kept.

    ``kept`` counts pages from the beginning. Nothing is noted of pages above which a digest
    is missing.
    """
    for node, pages in _path(at, 0 if kept else digests.start):
        chain = node.chain or Chain(b"", 0, 0)
        have, end = chain.pages, min(pages, digests.known_end - node.start)
        if have < pages and node.start + have < digests.start:
            return
        known = chain.digests
        if end > have:
            known += b"".join(digests.between(node.start + have, node.start + end))
        if known:
            there = max(_kept(node), min(kept - node.start, max(have, end), pages))
            node.chain = Chain(known, there, node.namespace.losses)


def _kept(node: Node) -> int:
    chain = node.chain
    return chain.kept if chain is not None and chain.losses == node.namespace.losses else 0


def _path(at: Position, since: int) -> list[Position]:
    """Return the nodes of a path with how many pages of each are on it, from the top.

    Without those whose pages are all among the first ``since``.
    """
    path = []
    node, pages = at
    while node.parent is not None and node.start + pages > since:
        path.append(Position(node, pages))
        node = node.parent
        pages = len(node.slots)
    return path[::-1]
