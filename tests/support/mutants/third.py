"""The faults about tier 3 that the cache machine has to find in the core."""

from mutants.mutant import Mutant

THIRD_MUTANTS = [
    Mutant(
        "load-published-after-a-removal",
        "kvstore.core.tiers.disk_reads",
        "DiskRead.is_stale",
        "left or self.removals != self.namespace.removals",
        "left",
    ),
    Mutant(
        "targets-leak-when-the-end-left",
        "kvstore.core.tiers.disk_reads",
        "DiskReads.finish_read",
        "arena.recycle(rest, SlotState.MOVING)",
        "if not read.is_stale:\n    arena.recycle(rest, SlotState.MOVING)",
    ),
    Mutant(
        "chain-not-reset-on-a-cut",
        "kvstore.core.index.node",
        "Node.cut_pages",
        "self.chain = self.chain.cut(keep)",
        "pass",
    ),
    Mutant(
        "chain-stays-below-a-split",
        "kvstore.core.index.node",
        "Node.give_upper",
        "upper.chain, self.chain = self.chain.divide(pages)",
        "upper.chain, self.chain = self.chain.cut(pages), self.chain",
    ),
    Mutant(
        "kept-survives-a-loss",
        "kvstore.core.tiers.disk_writes",
        "DiskWrites.forget_kept",
        "namespace.losses += 1",
        "namespace.losses += 0",
    ),
    Mutant(
        "keep-does-not-hold-its-pages",
        "kvstore.core.tiers.disk_writes",
        "DiskWrite.__init__",
        "self.stand_at(at)",
        "self.stand_at(ancestor(at, 1))",
    ),
    Mutant(
        "corrupt-page-stays-on-the-disk",
        "kvstore.core.verbs.verify",
        "Verifying.remove_corrupt",
        "self._state.disk.remove(namespace, digest_at(at))",
        "pass",
    ),
]

# Where a path and what is loaded below it are in extents of their own.
THIRD_TIER_MUTANTS = [
    Mutant(
        "loaded-under-a-detached-parent",
        "kvstore.core.tiers.disk_reads",
        "DiskRead.is_stale",
        "bool(self.anchors) and self.anchors[0].node.detached",
        "False",
    ),
]
