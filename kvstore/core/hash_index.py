"""The other index: a node for each page, found by a digest of all tokens through it.

A page's digest is taken of its parent's and of its own tokens (chained block hashes,
vLLM's way: docs.vllm.ai, "Automatic Prefix Caching"), so that one look in one map
finds a page wherever it is. A look is believed only if the page that it finds has
these tokens and continues the page found before: no collision serves a wrong page.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING

from kvstore.core.node import Node, Position
from kvstore.core.radix import RadixIndex
from kvstore.core.values.slots import Slots

if TYPE_CHECKING:
    from kvstore.core.namespace import Namespace

DIGEST_BYTES = 16
Digest = Callable[[bytes], bytes]


def blake2b_128(content: bytes) -> bytes:
    """Return the BLAKE2b digest of 128 bits (RFC 7693)."""
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


class HashIndex(RadixIndex):
    """The pages of one namespace by their chained digests. Not thread-safe.

    The tree is the radix index's, of nodes of one page: holds, evictions and removals
    go along it, and siblings are told apart by it. A page whose digest another page
    has already is found among its parent's children instead.
    """

    joins_nodes = False

    def __init__(
        self, namespace: "Namespace", page_tokens: int, digest: Digest = blake2b_128
    ) -> None:
        super().__init__(namespace, page_tokens)
        self._digest = digest
        self._pages: dict[bytes, Node] = {}
        self._digests: dict[int, bytes] = {self.root.number: b""}

    def descend(self, at: Position, tokens: bytes, pages: int) -> Position:
        """Return how far the first ``pages`` pages of ``tokens`` are cached below ``at``.

        Changes nothing. Cost: a digest and a look a page. ``at`` MUST be in the tree.
        """
        node, width = at.node, self.width
        digest = self._digests[node.number]
        for start in range(0, pages * width, width):
            page = tokens[start : start + width]
            digest = self._digest(digest + page)
            found = self._pages.get(digest)
            if found is None or found.parent is not node or found.edge != page:
                found = node.children.get(page)
            if found is None:
                break
            node = found
        return Position(node, len(node.slots))

    def extend(self, at: Position, tokens: bytes, slots: Slots) -> Position:
        """Add ``slots``'s pages, of ``tokens``, after ``at`` and return their end.

        As ``RadixIndex.extend``, but that each page is a node.
        """
        node, width = at.node, self.width
        was_bare = node.is_bare
        for number, slot in enumerate(slots):
            page = tokens[number * width : (number + 1) * width]
            start = node.start + len(node.slots)
            node = self._new_node(page, array("Q", [slot]), node, start)
        self.page_count += len(slots)
        if was_bare:
            at.node.cover()
        return Position(node, len(node.slots))

    def _new_node(self, edge: bytes, slots: Slots, parent: Node, start: int) -> Node:
        node = super()._new_node(edge, slots, parent, start)
        digest = self._digest(self._digests[parent.number] + edge)
        self._digests[node.number] = digest
        self._pages.setdefault(digest, node)
        return node

    def _forget(self, node: Node) -> None:
        super()._forget(node)
        digest = self._digests.pop(node.number)
        if self._pages.get(digest) is node:
            del self._pages[digest]
