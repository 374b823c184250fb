"""What the core has under way with tier 3, whose pages themselves it knows nothing of."""

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from kvstore.core.page_digest import page_digests

if TYPE_CHECKING:
    from kvstore.core.keep import Keep
    from kvstore.core.load import Load
    from kvstore.core.namespace import Namespace
    from kvstore.core.node import Node, Position

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


class ThirdTier:
    """Touched pages, those on their way to and from tier 3, and removals. Not thread-safe.

    ``namespaces`` stand by their digests.
    """

    def __init__(self) -> None:
        self.touches: deque[Touch] = deque(maxlen=MAX_TOUCHES)
        self.keeps: dict[Keep, None] = {}
        self.loads: dict[Load, None] = {}
        self.removed: list[RemovedPrefix] = []
        self.namespaces: dict[bytes, Namespace] = {}

    def touched(self, at: "Position", start: int = 0) -> None:
        """Take note of the whole pages of a path from ``start`` on, unless all of it is kept."""
        node, pages = at
        if pages and len(node.edge) < node.namespace.index.width:
            # A partial page is not kept.
            assert node.parent is not None  # the root has no pages
            node = node.parent
            pages = len(node.slots)
        chain = node.chain
        if chain is not None and chain.kept >= pages and chain.losses == node.namespace.losses:
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
        was told.
        """
        namespace.removals += 1
        namespace.removing += 1
        removed = RemovedPrefix(namespace.namespace_id, namespace.digest, page_digest)
        self.removed.append(removed)
