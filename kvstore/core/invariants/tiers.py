"""The invariants of moves under way, and of the pages that the disk is known to have."""

from collections import Counter
from collections.abc import Iterator

from kvstore.core.cache import PrefixCache
from kvstore.core.index.node import Anchor, Node, PageHashes, Position
from kvstore.core.index.path_hashes import NOTHING
from kvstore.core.index.radix import path_slots, subtree
from kvstore.core.invariants.invariant import invariant
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.disk_state import DiskState
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.placement import FIRST, LOWER
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.tiers.group_reads import GroupRead
from kvstore.core.values.page_hash import page_digests


def check_moves(cache: PrefixCache) -> None:
    """Raises ``InvariantBroken`` unless every move holds its sources and the tables know these."""
    sources = [each.source for move in cache.moves for each in move.transfers]
    invariant(len(sources) == len(set(sources)), "a page moves once at a time")
    invariant(set(sources) == cache.moving, "what moves is known")
    for move in cache.moves:
        held = {slot for anchor in move.anchors for slot in _path(anchor)}
        kept = held.issuperset(each.source for each in move.transfers)
        invariant(kept, "a move holds its sources", move.tier)


def _path(anchor: Anchor) -> Iterator[int]:
    for tier in (FIRST, LOWER):
        yield from path_slots(Position(anchor.node, anchor.pages), tier)


def check_disk(cache: PrefixCache) -> None:
    """Raises ``InvariantBroken`` unless everything known of the disk is consistent."""
    for namespace in cache.namespaces.values():
        for node in list(subtree(namespace.index.root))[1:]:
            if node.page_hashes is not None:
                _check_hashes(node, node.page_hashes)
    if cache.state.disk is not None:
        _check_under_way(cache)
        _check_untold(cache.state.disk)
        for namespace in cache.namespaces.values():
            _check_reads(cache, namespace)
        for arena in cache.arenas.values():
            _check_bounded(cache, arena)


def _check_hashes(node: Node, hashes: PageHashes) -> None:
    parent, width = node.parent, node.tree.width
    assert parent is not None  # only the root has none
    above = parent.page_hashes or NOTHING
    known = above.pages == len(parent.slots)
    invariant(known, "a digest is known only if its parent's is", node.number)
    digest = above.through(above.pages) if above.pages else node.tree.digest
    tokens = node.edge[: hashes.pages * width]
    right = hashes.hashes == b"".join(page_digests(digest, tokens, width))
    invariant(right, "digests are those of the path's tokens", node.number)
    losses = node.tree.losses
    known = 0 < hashes.pages <= len(node.slots) and len(hashes.kept) == len(losses)
    known = known and all(0 <= kept <= hashes.pages for kept in hashes.kept)
    sentence = "what is kept is of the node's pages, by their digests"
    invariant(known, sentence, node.number, hashes.kept)
    for number in range(len(losses)):
        if hashes.kept_in(number, losses):
            whole = parent.parent is None or above.kept_in(number, losses) == above.pages
            invariant(whole, "a page is known to be kept only if its parent is", node.number)


def _check_under_way(cache: PrefixCache) -> None:
    for write in cache.disk_writes:
        copies = list(write.slots()[write.start :])
        same = copies == [page.slot for page in write.pages]
        invariant(same, "a disk write holds its pages", write.pages)
    for read in cache.disk_reads:
        invariant(read.held_end == read.start, "a disk read holds all that is above it", read.start)
        planned = read.start <= read.end <= read.planned_end == read.sources[-1].end
        invariant(planned, "a disk read has slots for pages that it plans", read.sources)


def _check_untold(disk: DiskState) -> None:
    invariant(all(map(any, disk.untold.values())), "what tier 3 was told of is forgotten")
    for number, removed in enumerate(disk.removed):
        for digest, count in Counter(each.namespace_digest for each in removed).items():
            namespace = disk.namespaces.get(digest)
            none = (0,) * len(disk.removed)
            owed = disk.untold.get(digest, none) if namespace is None else namespace.removing
            invariant(count <= owed[number], "tier 3 is told of every removal", count)


def _check_reads(cache: PrefixCache, namespace: Namespace) -> None:
    every: list[DiskRead | GroupRead] = [*cache.disk_reads, *cache.group_reads]
    reads = [read for read in every if read.namespace is namespace]
    digests = [
        digest
        for read in reads
        for digest in (
            read.planned_digests
            if isinstance(read, DiskRead)
            else [page.digest for page in read.pages]
        )
    ]
    invariant(len(digests) == len(set(digests)), "a page is read once at a time")
    known = cache.reads_in(namespace).keys() | cache.group_reads_in(namespace).keys()
    invariant(set(digests) == known, "what is being read is known")


def _check_bounded(cache: PrefixCache, arena: Arena) -> None:
    reads = [read for read in cache.disk_reads if read.namespace.arena is arena]
    groups = [read for read in cache.group_reads if read.namespace.arena is arena]
    within = all(read.bounded_count <= len(read.targets) for read in reads)
    count = sum(read.bounded_count for read in reads)
    count += sum(len(read.targets) for read in groups if read.is_bounded)
    within = within and count == arena.bounded_count
    invariant(within, "slots taken under a bound are counted", arena.bounded_count)
