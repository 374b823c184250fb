"""Notes what happens to pages, with the digests of their paths where somebody watches.

A digest costs a microsecond for each page of the path that no node remembers one of; from
then on nodes remember them, as they do for tier 3.
"""

from kvstore.core.index.node import Node, Position
from kvstore.core.index.path_hashes import digests_to, remember
from kvstore.core.namespace import namespace_of
from kvstore.core.tiers import FIRST, LOWER
from kvstore.core.values.events import Cause, PagesChange, PagesEvent

EVENT_DIGEST_BYTES = 16

_new_tuple = tuple.__new__


def note_pages(
    change: PagesChange, cause: Cause, node: Node, end: int, pages: int, tier: int
) -> None:
    """Note what happened, or is about to, to the last ``pages`` of a node's pages through ``end``.

    They may begin in a node above. They are in the index, with all that is above them.
    """
    namespace = namespace_of(node)
    log, tenant, namespace_id = namespace.events, namespace.tenant, namespace.namespace_id
    depth, digest = node.start + end, b""
    if log.watches and log.is_watched(tenant, namespace_id):
        at = Position(node, end)
        digests = digests_to(at)
        digest = digests.through(depth)[:EVENT_DIGEST_BYTES]
        remember(at, digests, 0)
    start = depth - pages
    event = (log.now, tenant, namespace_id, change, cause, start, pages, tier, digest)
    log.note(_new_tuple(PagesEvent, event))


def note_removed(node: Node, cause: Cause) -> None:
    """Note that a node's pages are about to leave the index, whatever tiers they are in."""
    pages = len(node.slots)
    tier = FIRST if node.copy_count == pages else LOWER
    note_pages(PagesChange.REMOVED, cause, node, pages, pages, tier)
