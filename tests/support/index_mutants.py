"""The faults about nodes that are merged, and of the other index, that the machine has to find."""

from core_mutants import Mutant

INDEX_MUTANTS = [
    Mutant(
        "merged-with-a-partial-page", "merging.py", "child if whole and follows", "child if follows"
    ),
    Mutant("start-kept-after-a-merge", "radix.py", "        child.start = node.start\n", ""),
    Mutant(
        "digest-believed",
        "hash_index.py",
        "found is None or found.parent is not node or found.edge != page",
        "found is None",
    ),
]
