"""The laws of what the core knows of tier 3, and has under way with it."""

from collections import Counter

from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Chain, Node
from kvstore.core.index.radix import subtree
from kvstore.core.law import law
from kvstore.core.namespace import Namespace
from kvstore.core.third_tier import ThirdTier
from kvstore.core.values.page_hash import page_digests

NOTHING = Chain(b"", 0, 0)


def check_third_tier(cache: PrefixCache) -> None:
    """Raise ``LawBroken`` unless what is known of tier 3 can be so."""
    for namespace in cache.namespaces.values():
        for node in list(subtree(namespace.index.root))[1:]:
            if node.chain is not None:
                _check_chain(node, node.chain)
    if cache.third is not None:
        _check_under_way(cache.third)
        _check_untold(cache.third)
        for namespace in cache.namespaces.values():
            _check_namespace(cache.third, namespace)


def _check_chain(node: Node, chain: Chain) -> None:
    parent, width = node.parent, node.tree.width
    assert parent is not None  # only the root has none
    above = parent.chain or NOTHING
    law(above.pages == len(parent.slots), "a digest is known only if its parent's is", node.number)
    digest = above.digest(above.pages) if above.pages else node.tree.digest
    tokens = node.edge[: chain.pages * width]
    right = chain.digests == b"".join(page_digests(digest, tokens, width))
    law(right, "digests are those of the path's tokens", node.number)
    known = 0 <= chain.kept <= chain.pages and 0 < chain.pages <= len(node.slots)
    law(known, "what is kept is of the node's pages, by their digests", node.number, chain.kept)
    if chain.kept and chain.losses == node.tree.losses:
        whole = parent.parent is None or (above.kept, above.losses) == (above.pages, chain.losses)
        law(whole, "a page is known to be kept only if its parent is", node.number)


def _check_under_way(third: ThirdTier) -> None:
    for keep in third.keeps:
        copies = list(keep.slots()[keep.start :])
        same = copies == [page.slot for page in keep.pages]
        law(same, "a keep holds its pages", keep.pages)
    for load in third.loads:
        law(load.held_end == load.start, "a load holds all that is above it", load.start)


def _check_untold(third: ThirdTier) -> None:
    law(all(third.untold.values()), "what tier 3 was told of is forgotten")
    for digest, count in Counter(each.namespace_digest for each in third.removed).items():
        namespace = third.namespaces.get(digest)
        untold = third.untold.get(digest, 0) if namespace is None else namespace.removing
        law(count <= untold, "tier 3 is told of every removal", count)


def _check_namespace(third: ThirdTier, namespace: Namespace) -> None:
    loads = [load for load in third.loads if load.namespace is namespace]
    digests = [page.digest for load in loads for page in load.pages]
    law(len(digests) == len(set(digests)), "a page is loaded once at a time")
    law(set(digests) == namespace.loading.keys(), "what is loading is known")
