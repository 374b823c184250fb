"""The faults about checksums and corrupt pages that the cache machine has to find in the core."""

from mutants.mutant import Mutant

CHECKSUM_MUTANTS = [
    Mutant(
        "removed-for-no-reason",
        "kvstore.core.cache_state",
        "CacheState.count_removed",
        "self.removed_pages[cause] = self.removed_pages.get(cause, 0) + total",
        "pass",
    ),
    Mutant(
        "corrupt-page-s-children-stay",
        "kvstore.core.pool.pages",
        "remove_corrupt",
        "assert above is not None",
        "assert above is not None\n"
        "for key, child in list(top.children.items()):\n"
        "    top.children.drop(key)\n"
        "    above.add_child(key, child)\n"
        "    child.parent = above",
    ),
    Mutant(
        "page-below-a-corrupt-one-removed-in-its-place",
        "kvstore.core.pool.pages",
        "remove_corrupt",
        "if at.pages > 1:\n    namespace.index.split(top, at.pages - 1)",
        "if 1 < at.pages < len(top.slots):\n    namespace.index.split(top, at.pages)",
    ),
    Mutant(
        "duplicate-s-checksum-replaces-the-first-s",
        "kvstore.core.verbs.insert",
        "publish_next",
        "namespace.arena.keep_checksums(\n"
        "    (slot, checksum) for slot, published, checksum in marked if published\n"
        ")",
        "path = []\n"
        "for depth in range(parent.depth + 1, parent.depth + len(flags) + 1):\n"
        "    node = at.node\n"
        "    while node.start >= depth:\n"
        "        node = node.parent\n"
        "    path.append(node.slots[depth - node.start - 1])\n"
        "namespace.arena.keep_checksums(zip(path, checksums))",
    ),
    Mutant(
        "answer-with-a-removed-page-is-given",
        "kvstore.core.verbs.verify",
        "Verifying.settle",
        "not any((has_left(anchor.node) for anchor in anchors))",
        "True",
    ),
    Mutant(
        "pin-of-an-answer-not-given-is-kept",
        "kvstore.core.verbs.verify",
        "Verifying.withdraw",
        "lease.drop_pin(hold)",
        "pass",
    ),
    Mutant(
        "page-looked-at-is-its-neighbour",
        "kvstore.core.verbs.verify",
        "_checks_in",
        "own[end - before]",
        "own[max(end - before - 1, 0)]",
    ),
    Mutant(
        "pin-id-of-another-match",
        "kvstore.core.verbs.match",
        "took",
        "sequence.tokens.startswith(pin.tokens()[sequence.position * TOKEN_BYTES :])",
        "True",
    ),
    Mutant(
        "slots-in-order-from-the-first-one",
        "kvstore.core.values.runs",
        "_in_order",
        "extent.order.startswith(slots, first * slots.itemsize)",
        "extent.order.startswith(slots.tobytes()[:8], first * slots.itemsize)",
    ),
]
