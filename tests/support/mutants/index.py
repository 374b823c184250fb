"""Faults about nodes that are merged or become leaves, and of the other index, to be found."""

from mutants.mutant import Mutant

INDEX_MUTANTS = [
    Mutant(
        "merged-with-a-partial-page",
        "kvstore.core.index.radix",
        "continuation",
        "whole and follows and not _is_held(child)",
        "follows and not _is_held(child)",
    ),
    Mutant(
        "parent-not-offered-when-its-last-child-goes",
        "kvstore.core.pool.pages",
        "succeed",
        "node.tree.leaf_changed(node)",
        "pass",
    ),
    Mutant(
        "start-kept-after-a-merge",
        "kvstore.core.index.radix",
        "RadixIndex.merge",
        "child.start = node.start",
        "pass",
    ),
    Mutant(
        "digest-believed",
        "kvstore.core.index.hash_index",
        "HashIndex.descend",
        "found is None or found.parent is not node or found.edge != page",
        "found is None",
    ),
]
