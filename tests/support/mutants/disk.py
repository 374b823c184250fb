"""The faults about tier 3 that the cache machine has to find in the core."""

from mutants.mutant import Mutant

DISK_MUTANTS = [
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
        "page-hashes-not-cut",
        "kvstore.core.index.node",
        "Node.cut_pages",
        "self.page_hashes = self.page_hashes.cut(keep)",
        "pass",
    ),
    Mutant(
        "page-hashes-stay-below-a-split",
        "kvstore.core.index.node",
        "Node.give_upper",
        "upper.page_hashes, self.page_hashes = self.page_hashes.divide(pages)",
        "upper.page_hashes, self.page_hashes = self.page_hashes.cut(pages), self.page_hashes",
    ),
    Mutant(
        "kept-survives-a-loss",
        "kvstore.core.tiers.disk_writes",
        "DiskWrites.forget_kept",
        "namespace.lose(number)",
        "pass",
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
        "Verifying._remove_from_disk",
        "self._state.disk.remove(namespace, hash_at(at))",
        "pass",
    ),
]

# Where a path and what is loaded below it are in extents of their own.
DISK_AND_HOST_MUTANTS = [
    Mutant(
        "loaded-under-a-detached-parent",
        "kvstore.core.tiers.disk_reads",
        "DiskRead.is_stale",
        "bool(self.anchors) and self.anchors[0].node.detached",
        "False",
    ),
]
