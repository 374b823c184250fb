"""Leaves planted for a policy, and what it has go, in a few letters."""

from core.core_builders import TENANT, letters_of, make_namespace, make_tenant, plant
from kvstore.core.eviction.protocol import EvictionPolicy
from kvstore.core.pool.arena import Arena, ArenaKey
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict
from kvstore.core.values.requests import ExpectedReuse, Hint
from kvstore.core.values.slots import ExtentSlots


def make(policy: EvictionPolicy, slots: int = 64) -> Namespace:
    """Returns an empty namespace whose arena has this policy."""
    arena = Arena(1, ArenaKey(TENANT, 64, 1), policy, make_tenant())
    arena.add_extent(ExtentSlots(1, slots))
    return make_namespace(arena=arena)


def put(
    namespace: Namespace, letters: str, last_use: int, hits: int = 0, hint: Hint | None = None
) -> None:
    """Plant a path; its last node was hit so often, and has this hint."""
    node = plant(namespace, letters, last_use).node
    node.hits = hits
    node.hint = hint or node.hint
    namespace.arena.policy.offer(node)


def going(namespace: Namespace, pages: int) -> list[tuple[str, int]]:
    """Nominate and evict; return what went, as (the node's letters, pages of its tail)."""
    victims = namespace.arena.policy.nominate(pages)
    width = namespace.index.width
    gone = [(letters_of(each.leaf.node.edge, width), each.pages) for each in victims]
    evict(victims)
    return gone


def hint(expected: ExpectedReuse, until: float = 1e9, priority: int = 0) -> Hint:
    """Returns a hint."""
    return Hint(expected, until, priority)
