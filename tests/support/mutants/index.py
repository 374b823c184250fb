"""Faults about nodes that are merged or become leaves, and of the other index, to be found."""

from mutants.core import Mutant

INDEX_MUTANTS = [
    Mutant(
        "merged-with-a-partial-page",
        "index/radix.py",
        "child if whole and follows",
        "child if follows",
    ),
    Mutant(
        "parent-not-offered-when-its-last-child-goes",
        "pool/pages.py",
        "        node.tree.leaf_changed(node)\n        if above.copy_count:\n",
        "        if above.copy_count:\n",
    ),
    Mutant("start-kept-after-a-merge", "index/radix.py", "        child.start = node.start\n", ""),
    Mutant(
        "digest-believed",
        "index/hash_index.py",
        "found is None or found.parent is not node or found.edge != page",
        "found is None",
    ),
]
