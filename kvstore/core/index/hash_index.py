"""The alternative index: a node for each page, found by a digest of all tokens through it.

A page's digest covers its parent's digest and its own tokens, as vLLM's chained block hashes
(docs.vllm.ai, "Automatic Prefix Caching"). One look in one map thus finds a page wherever
it is. The index accepts a page only if it has these tokens and continues the page found
before, so a collision cannot serve a wrong page.
"""

from array import array
from collections.abc import Callable
from hashlib import blake2b

from kvstore.core.index.node import Node, Position, Tree
from kvstore.core.index.radix import RadixIndex, end_of_path
from kvstore.core.values.group_pages import is_group_page
from kvstore.core.values.slots import Slots

DIGEST_BYTES = 16
Digest = Callable[[bytes], bytes]


def blake2b_128(content: bytes) -> bytes:
    """Returns the BLAKE2b digest of 128 bits (RFC 7693)."""
    return blake2b(content, digest_size=DIGEST_BYTES).digest()


class HashIndex(RadixIndex):
    """The pages of one namespace by their chained digests. Not thread-safe.

    The tree is that of the radix index, with nodes of one page. Holds, evictions and removals
    follow it, and it tells siblings apart. If two pages have the same digest, the second is
    found among its parent's children.
    """

    joins_nodes = False

    def __init__(self, tree: Tree, page_tokens: int, digest: Digest = blake2b_128) -> None:
        super().__init__(tree, page_tokens)
        self._digest = digest
        self._pages: dict[bytes, Node] = {}
        self._digests: dict[int, bytes] = {self.root.number: b""}

    def descend(self, at: Position, tokens: bytes, pages: int) -> Position:
        """Returns how far the first ``pages`` pages of ``tokens`` are cached below ``at``.

        Changes nothing. Never ends with a page of a KV cache group. Costs a digest and a look for
        each page. ``at`` MUST be in the tree.
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
        return end_of_path(node) if is_group_page(node.edge) else Position(node, len(node.slots))

    def extend(self, at: Position, tokens: bytes, slots: Slots) -> Position:
        """Adds pages with ``slots`` and ``tokens`` after ``at`` and returns their end.

        Does as ``RadixIndex.extend``, but makes a node of each page.
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

    def compact(self, node: Node) -> None:
        """Does nothing: a node has one page."""

    def condemn(self, node: Node) -> None:
        """Hides ``node`` and everything below it, as ``RadixIndex.condemn`` does."""
        super().condemn(node)
        digest = self._digests[node.number]
        if self._pages.get(digest) is node:
            del self._pages[digest]

    def _new_node(
        self, edge: bytes, slots: Slots, parent: Node, start: int, key: bytes = b""
    ) -> Node:
        node = super()._new_node(edge, slots, parent, start, key)
        digest = self._digest(self._digests[parent.number] + edge)
        self._digests[node.number] = digest
        self._pages.setdefault(digest, node)
        return node

    def _forget(self, node: Node) -> None:
        super()._forget(node)
        digest = self._digests.pop(node.number)
        if self._pages.get(digest) is node:
            del self._pages[digest]
