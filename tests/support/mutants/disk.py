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
        "read.namespace.arena.recycle(read.targets, SlotState.MOVING)",
        "if not read.is_stale:\n    read.namespace.arena.recycle(read.targets, SlotState.MOVING)",
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
        "self._state.disk.remove(namespace, hash_at(at), is_corrupt=True)",
        "pass",
    ),
]

# Where a path and what is loaded below it are in extents of their own.
DISK_AND_HOST_MUTANTS = [
    Mutant(
        "loaded-under-a-detached-parent",
        "kvstore.core.tiers.disk_reads",
        "DiskRead.is_stale",
        "bool(self.anchors) and has_left(self.anchors[0].node)",
        "False",
    ),
]

# Of pages that are read in runs.
RUN_MUTANTS = [
    Mutant(
        "published-run-is-not-held",
        "kvstore.core.tiers.disk_reads",
        "DiskReads.publish_run",
        "read.stand_at(at)",
        "pass",
    ),
    Mutant(
        "plan-is-forgotten-with-its-first-run",
        "kvstore.core.tiers.disk_reads",
        "DiskReads._advance",
        "read.digests.between(read.start, read.start + len(good))",
        "read.digests.between(read.start, read.planned_end)",
    ),
    Mutant(
        "bounded-slots-are-counted-for-ever",
        "kvstore.core.tiers.disk_reads",
        "DiskReads._drop_targets",
        "read.namespace.arena.bounded_count -= read.bounded_count - left",
        "pass",
    ),
    Mutant(
        "stale-read-takes-slots",
        "kvstore.core.tiers.disk_reads",
        "DiskReads.take_run",
        "count <= 0 or read.is_stale",
        "count <= 0",
    ),
    Mutant(
        "victims-left-are-beyond-eviction",
        "kvstore.core.tiers.read_slots",
        "_evict_old",
        "arena.policy.offer(leaf)",
        "pass",
    ),
]
