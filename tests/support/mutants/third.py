"""The faults about tier 3 that the cache machine has to find in the core."""

from mutants.core import Mutant

THIRD_MUTANTS = [
    Mutant(
        "load-published-after-a-removal",
        "tiers/disk_reads.py",
        "        return left or self.removals != self.namespace.removals\n",
        "        return left\n",
    ),
    Mutant(
        "targets-leak-when-the-end-left",
        "tiers/disk_reads.py",
        "        arena.recycle(rest, SlotState.MOVING)\n",
        "        if not read.is_stale:\n            arena.recycle(rest, SlotState.MOVING)\n",
    ),
    Mutant(
        "chain-not-reset-on-a-cut",
        "index/node.py",
        "            self.chain = self.chain.cut(keep)\n",
        "            pass\n",
    ),
    Mutant(
        "chain-stays-below-a-split",
        "index/node.py",
        "            upper.chain, self.chain = self.chain.divide(pages)\n",
        "            upper.chain, self.chain = self.chain.cut(pages), self.chain\n",
    ),
    Mutant(
        "kept-survives-a-loss",
        "tiers/disk_writes.py",
        "                namespace.losses += 1\n",
        "                namespace.losses += 0\n",
    ),
    Mutant(
        "keep-does-not-hold-its-pages",
        "tiers/disk_writes.py",
        "        self.stand_at(at)\n",
        "        self.stand_at(ancestor(at, 1))\n",
    ),
    Mutant(
        "corrupt-page-stays-on-the-disk",
        "verbs/verify.py",
        "                    self._state.disk.remove(namespace, digest_at(at))\n",
        "                    pass\n",
    ),
]

# Where a path and what is loaded below it are in extents of their own.
THIRD_TIER_MUTANTS = [
    Mutant(
        "loaded-under-a-detached-parent",
        "tiers/disk_reads.py",
        "        left = bool(self.anchors) and self.anchors[0].node.detached\n",
        "        left = False\n",
    ),
]
