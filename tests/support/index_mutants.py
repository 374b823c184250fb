"""The faults about nodes that are merged, and of the other index, that the machine has to find."""

from core_mutants import Mutant

INDEX_MUTANTS = [
    Mutant("merged-with-a-partial-page", "merging.py", " or not whole", ""),
    Mutant("start-kept-after-a-merge", "radix.py", "        child.start = node.start\n", ""),
    Mutant(
        "next-tokens-lost-by-a-merge",
        "radix.py",
        "            child.ends = node.ends.join(child.ends)\n",
        "            pass\n",
    ),
    Mutant(
        "parts-of-a-cut-stay-apart",
        "pages.py",
        "        compact(cut)\n",
        "",
    ),
    Mutant(
        "what-a-reservation-left-stays-apart",
        "inserting.py",
        "        compact(node)\n",
        "        pass\n",
    ),
    Mutant(
        "digest-believed",
        "hash_index.py",
        "found is None or found.parent is not node or found.edge != page",
        "found is None",
    ),
    Mutant(
        "page-that-went-found-by-its-digest",
        "hash_index.py",
        "            del self._pages[digest]\n",
        "            pass\n",
    ),
]
