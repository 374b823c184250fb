"""A namespace: its arena's tenant, its layout's pages, a tree of its own."""

from core.core_builders import TENANT, make_arena, make_namespace, plant, shape
from core.tiered_world import make
from kvstore.core.index.radix import subtree
from kvstore.core.pool.placement import FIRST, LOWER


def test_a_namespace_is_its_arenas_tenants() -> None:
    """Pages and namespace have the same tenant."""
    assert make_namespace().tenant == TENANT


def test_a_new_namespace_is_empty() -> None:
    """Nothing is cached, detached or counted in a namespace just made."""
    namespace = make_namespace()
    assert namespace.index.page_count == namespace.detached_page_count == 0
    assert namespace.counters.is_zero()
    assert namespace.created_at == 100.0


def test_pages_are_as_wide_as_the_layout_says() -> None:
    """A page of n tokens is found by 4 * n bytes."""
    for page_tokens in (1, 2, 16):
        assert make_namespace(page_tokens=page_tokens).index.width == 4 * page_tokens


def test_every_node_knows_its_namespace() -> None:
    """From any node, the root included, one finds the namespace that it belongs to."""
    namespace = make_namespace()
    for letters in ("abc", "abd", "x"):
        plant(namespace, letters)
    assert {node.tree for node in subtree(namespace.index.root)} == {namespace}


def test_namespaces_of_one_arena_share_slots_and_no_page() -> None:
    """A page in one namespace is not in another, and takes a slot from both."""
    arena = make_arena(8)
    one, other = make_namespace(arena=arena), make_namespace(arena=arena)
    plant(one, "abc")
    assert shape(other.index) == {}
    plant(other, "abc")
    assert arena.free_count == 2


def test_the_last_tier_decides_what_is_gone_and_both_have_slots() -> None:
    """The last of two tiers is the second, whose policy hears the number of all slots."""
    one, two = make_namespace(slots=8), make(slots=8, lower_slots=16)
    assert one.last == (one.arena.policy, 8)
    assert two.namespace.last == (two.cache.arenas[LOWER].policy, 24)
    assert two.namespace.last[0] is not two.cache.arenas[FIRST].policy
