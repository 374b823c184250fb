"""Notes what happens to pages, with the digests of their paths where somebody watches.

A digest costs a microsecond for each page of the path that no node remembers one of; from
then on nodes remember them, as they do for tier 3.
"""

from kvstore.core.events import Cause, PagesChange, PagesEvent
from kvstore.core.node import Node, Position
from kvstore.core.path_digests import digests_to, remember
from kvstore.core.tiers import FIRST, LOWER

EVENT_DIGEST_BYTES = 16


def note_pages(change: PagesChange, cause: Cause, at: Position, pages: int, tier: int) -> None:
    """Note what happened, or is about to, to the last ``pages`` pages of the path to ``at``.

    They are in the index, with all that is above them.
    """
    namespace = at.node.namespace
    log, tenant, namespace_id = namespace.events, namespace.tenant, namespace.namespace_id
    digest = b""
    if log.is_watched(tenant, namespace_id):
        digests = digests_to(at)
        digest = digests.through(at.depth)[:EVENT_DIGEST_BYTES]
        remember(at, digests, 0)
    depth = at.depth
    log.note(
        PagesEvent(log.now, tenant, namespace_id, change, cause, depth - pages, pages, tier, digest)
    )


def note_removed(node: Node, cause: Cause) -> None:
    """Note that a node's pages are about to leave the index, whatever tiers they are in."""
    pages = len(node.slots)
    tier = FIRST if node.copy_count == pages else LOWER
    note_pages(PagesChange.REMOVED, cause, Position(node, pages), pages, tier)
