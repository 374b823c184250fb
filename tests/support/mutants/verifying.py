"""The faults about checksums and corrupt pages that the cache machine has to find in the core."""

from mutants.core import Mutant

VERIFYING_MUTANTS = [
    Mutant(
        "removed-for-no-reason",
        "leases/state.py",
        "        self.removed_pages[cause] = self.removed_pages.get(cause, 0) + total\n",
        "",
    ),
    Mutant(
        "corrupt-page-s-children-stay",
        "pool/pages.py",
        "    removed = remove(top, Cause.CORRUPT)\n    if above.ends",
        "    for key, child in list(top.children.items()):\n"
        "        top.children.drop(key)\n"
        "        above.add_child(key, child)\n"
        "        child.parent = above\n"
        "    removed = remove(top, Cause.CORRUPT)\n    if above.ends",
    ),
    Mutant(
        "page-below-a-corrupt-one-removed-in-its-place",
        "pool/pages.py",
        "    if at.pages > 1:\n        namespace.index.split(top, at.pages - 1)\n",
        "    if 1 < at.pages < len(top.slots):\n        namespace.index.split(top, at.pages)\n",
    ),
    Mutant(
        "duplicate-s-checksum-replaces-the-first-s",
        "verbs/insert.py",
        "    marked = zip(slots, flags, checksums, strict=False)\n"
        "    namespace.arena.keep_checksums("
        "(slot, each) for slot, published, each in marked if published)\n",
        "    path = []\n"
        "    for depth in range(parent.depth + 1, parent.depth + len(flags) + 1):\n"
        "        node = at.node\n"
        "        while node.start >= depth:\n"
        "            node = node.parent\n"
        "        path.append(node.slots[depth - node.start - 1])\n"
        "    namespace.arena.keep_checksums(zip(path, checksums))\n",
    ),
    Mutant(
        "answer-with-a-removed-page-is-given",
        "verbs/verify.py",
        "        if True not in [anchor.node.detached for anchor in anchors]:\n",
        "        if True:\n",
    ),
    Mutant(
        "pin-of-an-answer-not-given-is-kept",
        "verbs/verify.py",
        "        for hold in holds:\n            lease.drop_pin(hold)\n",
        "        for hold in holds[:0]:\n            lease.drop_pin(hold)\n",
    ),
    Mutant(
        "page-looked-at-is-its-neighbour",
        "verbs/verify.py",
        "            slot = own[end - before]\n",
        "            slot = own[max(end - before - 1, 0)]\n",
    ),
    Mutant(
        "pin-id-of-another-match",
        "verbs/match.py",
        "    return pin.tokens()[start : start + matched] == sequence.tokens[:matched]\n",
        "    return True\n",
    ),
    Mutant(
        "slots-in-order-from-the-first-one",
        "values/runs.py",
        "extent.order.startswith(slots, first * slots.itemsize)",
        "extent.order.startswith(slots.tobytes()[:8], first * slots.itemsize)",
    ),
]
