"""A namespace's tree as rows of numbers."""

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, node_at, paged
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.stats import COLUMNS, first_tokens, overdue_holds, tree_rows
from kvstore.core.values.requests import NamedPinRequest

NEWEST = 1 << 40


def rows_of(world: CoreWorld, *, newest: int = NEWEST, late: bool = False) -> dict[int, list[int]]:
    """Returns what the rows say of each node, by its number."""
    namespace = world.namespace
    overdue = overdue_holds(world.cache.table.leases.values() if late else (), namespace)
    rows = list(tree_rows(namespace, list(namespace.index.nodes), newest, overdue))
    width = len(COLUMNS)
    return {rows[at]: rows[at + 1 : at + width] for at in range(0, len(rows), width)}


def test_a_row_has_a_nodes_place_and_size() -> None:
    """Parent, start and length in tokens; matches that ended in it, and the last of them."""
    world = CoreWorld(slots=16)
    world.worker.publish("abcd", "abxy")
    world.worker.match("abx", 1)
    upper, lower, other = (node_at(world.namespace.index, each) for each in ("ab", "abcd", "abxy"))
    uses = world.cache.state.use_count
    found = rows_of(world)
    assert found.keys() == {upper.number, lower.number, other.number}
    assert found[upper.number][:3] == [0, 0, 4]
    assert found[lower.number][:3] == [upper.number, 4, 4]
    # The match ended inside the node, which is a step of it.
    assert found[other.number] == [upper.number, 4, 4, 1, uses, 1, 0]
    assert 0 < found[lower.number][4] < uses


def test_what_was_made_later_is_left_out() -> None:
    """A node that a split put above another one is no part of rows that began before it."""
    world = CoreWorld(slots=16)
    world.worker.publish("abcd")
    [before] = world.namespace.index.nodes
    world.worker.publish("abxy")
    assert rows_of(world, newest=before)[before][0] == 0
    assert rows_of(world)[before][0] == node_at(world.namespace.index, "ab").number


def test_what_is_gone_has_no_row() -> None:
    """A number whose node was evicted is passed over."""
    world = CoreWorld(slots=16)
    world.worker.publish("ab", "xy")
    numbers = list(world.namespace.index.nodes)
    world.evict_prefix("x")
    rows = tree_rows(world.namespace, numbers, NEWEST, {})
    assert list(rows[:: len(COLUMNS)]) == [node_at(world.namespace.index, "ab").number]
    assert list(first_tokens(world.namespace, numbers, 2).values()) == [paged("a")]


def test_holds_of_leases_past_their_time_are_told_apart() -> None:
    """A hold counts where it ends; of another namespace it does not count."""
    world = CoreWorld(slots=16)
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, NamedPinRequest("mine", paged("ab")), world.now)
    [row] = rows_of(world, late=True).values()
    assert row[-2:] == [2, 1]
    [row] = rows_of(world).values()
    assert row[-2:] == [2, 0]


def test_holds_of_another_namespace_are_not_counted() -> None:
    """A lease's holds stand in the trees of the namespaces that they are of."""
    world, other = CoreWorld(), CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    leases = list(world.cache.table.leases.values())
    assert sum(overdue_holds(leases, world.namespace).values()) == 1
    assert overdue_holds(leases, other.namespace) == {}


def test_a_hold_on_copies_of_both_tiers_counts_once() -> None:
    """Where it ends, and not also where the copies of the other tier do."""
    world = CoreWorld(slots=8, lower_slots=8, tier_policy=TierPolicy())
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    [row] = rows_of(world).values()
    assert row[-2] == 1
