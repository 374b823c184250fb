"""What the core has under way with tier 3, whose pages themselves it knows nothing of."""

from collections import deque
from typing import NamedTuple

from kvstore.core.index.node import Node, Position
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.page_hash import page_digests

# Touches that wait at most; beyond that the oldest are lost, as if nobody had touched there.
MAX_TOUCHES = 1 << 14


class Touch(NamedTuple):
    """Pages from ``start`` through ``end`` of the path to ``node`` were inserted or matched."""

    node: "Node"
    start: int
    end: int


class RemovedPrefix(NamedTuple):
    """A page that tier 3 must not have any more, nor anything that comes after it.

    Without ``page_digest``: every page of the namespace.
    """

    namespace_id: bytes
    namespace_digest: bytes
    page_digest: bytes | None


class DiskState:
    """Touched pages, those on their way to and from tier 3, and removals. Not thread-safe.

    ``namespaces`` that are open stand by their digests. ``untold`` counts the removals that
    tier 3 was not told of yet of namespaces that are not open any more.
    """

    def __init__(self) -> None:
        self.touches: deque[Touch] = deque(maxlen=MAX_TOUCHES)
        self.removed: list[RemovedPrefix] = []
        self.namespaces: dict[bytes, Namespace] = {}
        self.untold: dict[bytes, int] = {}

    def open(self, namespace: "Namespace") -> None:
        """Take in a namespace; tier 3 may have to forget one of this identity first."""
        namespace.removing = self.untold.pop(namespace.digest, 0)
        self.namespaces[namespace.digest] = namespace

    def close(self, namespace: "Namespace") -> None:
        """Forget a namespace that was removed, but for what tier 3 is to be told of."""
        del self.namespaces[namespace.digest]
        self.untold[namespace.digest] = namespace.removing

    def told(self, namespace_digest: bytes) -> None:
        """Note that tier 3 was told of a removal."""
        namespace = self.namespaces.get(namespace_digest)
        if namespace is not None:
            namespace.removing -= 1
            return
        self.untold[namespace_digest] -= 1
        if not self.untold[namespace_digest]:
            del self.untold[namespace_digest]

    def touched(self, at: "Position", start: int = 0) -> None:
        """Take note of the whole pages of a path from ``start`` on, unless all of it is kept."""
        node, pages = at
        if pages and len(node.edge) < node.tree.width:
            # A partial page is not kept.
            assert node.parent is not None  # the root has no pages
            node = node.parent
            pages = len(node.slots)
        chain = node.chain
        if chain is not None and chain.kept >= pages and chain.losses == node.tree.losses:
            return
        if node.start + pages > start:
            self.touches.append(Touch(node, start, node.start + pages))

    def remove_prefix(self, namespace: "Namespace", tokens: bytes) -> None:
        """Note that nothing may return that holds a prefix's last token.

        Which pages begin as a page does that ends in it tier 3 cannot say: it loses the page
        above them too.
        """
        whole = len(tokens) - len(tokens) % namespace.index.width
        digest = None
        for each in page_digests(namespace.digest, tokens[:whole], namespace.index.width):
            digest = each
        if whole < len(tokens):
            namespace.losses += 1
        self.remove(namespace, digest)

    def remove(self, namespace: "Namespace", page_digest: bytes | None) -> None:
        """Note that a page may not return, nor what comes after it; None: nothing at all may.

        No load of the namespace that is under way publishes, and none begins before tier 3
        was told. Of one that was deleted all was removed already.
        """
        if namespace.deleted:
            return
        namespace.removals += 1
        namespace.removing += 1
        removed = RemovedPrefix(namespace.namespace_id, namespace.digest, page_digest)
        self.removed.append(removed)
