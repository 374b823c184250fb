"""A namespace's tree as rows of numbers, to be read a part at a time."""

from array import array
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items

from kvstore.core.index.node import Node
from kvstore.core.lease import Lease
from kvstore.core.namespace import Namespace, namespace_of
from kvstore.core.values.tokens import TOKEN_BYTES

# What a row has, in this order. ``parent`` is the number of the node above, 0 without one;
# ``start`` counts the tokens before the node's own, which are ``tokens``; ``hits`` are matches
# that ended in it, and ``used`` is when one last did, as ``PrefixCache.use_count`` counts;
# ``holds`` end in it, ``overdue`` of them of leases past their time to live.
COLUMNS = ("number", "parent", "start", "tokens", "hits", "used", "holds", "overdue")


def tree_rows(
    namespace: Namespace, numbers: Items[int], newest: int, overdue: Mapping[int, int]
) -> "array[int]":
    """Return one row after the other, of those of the nodes ``numbers`` that are still there.

    Nodes with numbers above ``newest`` are left out: what stands below such a one hangs on
    what is above it. So parts that are read one after the other fit together, where pages
    were added meanwhile. ``overdue`` is what ``overdue_holds`` returned.
    """
    nodes, page_tokens = namespace.index.nodes, namespace.layout.page_tokens
    rows = array("q")
    for number in numbers:
        node = nodes.get(number)
        if node is not None:
            steps = node.steps or ()
            row = (
                number,
                _number_above(node, newest),
                node.start * page_tokens,
                len(node.edge) // TOKEN_BYTES,
                node.hits + sum(each.hits for each in steps),
                max((node.last_use, *(each.last_use for each in steps))),
                _hold_count(node),
                overdue.get(number, 0),
            )
            rows.extend(row)
    return rows


def overdue_holds(leases: Iterable[Lease], namespace: Namespace) -> dict[int, int]:
    """Return how many holds of ``leases`` end in each node of a namespace, where some do."""
    counts: dict[int, int] = {}
    for lease in leases:
        for hold in (*lease.pins.values(), *lease.reservations.values()):
            ends = hold.anchors if hold.namespace is namespace else ()
            for each in ends:
                counts[each.node.number] = counts.get(each.node.number, 0) + 1
    return counts


def first_tokens(namespace: Namespace, numbers: Iterable[int], max_tokens: int) -> dict[int, bytes]:
    """Return the first ``max_tokens`` tokens of those of the nodes that are still there."""
    nodes = namespace.index.nodes
    found = {number: nodes.get(number) for number in numbers}
    width = max_tokens * TOKEN_BYTES
    return {number: node.edge[:width] for number, node in found.items() if node is not None}


def _number_above(node: Node, newest: int) -> int:
    above = node.parent
    while above is not None and above.number > newest:
        above = above.parent
    return 0 if above is None else above.number


def _hold_count(node: Node) -> int:
    """Return how many holds end in a node: one that has copies of both tiers ends once."""
    if namespace_of(node).lower_arena is None:
        return len(node.anchors)
    return sum(
        anchor in anchor.hold.anchors for copies in node.leaves() for anchor in copies.anchors
    )
