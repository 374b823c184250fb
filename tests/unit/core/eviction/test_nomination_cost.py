"""The cost of a nomination: entries of the order that it checks, counted."""

from itertools import count

import pytest

from core.core_builders import TENANT, make_namespace, make_tenant, node_at, plant
from kvstore.core.eviction.leaf_order import SWEEP_FROM, EntryQueue
from kvstore.core.eviction.policies import LeastRecentlyUsed
from kvstore.core.index.node import Anchor
from kvstore.core.leases.holds import Hold
from kvstore.core.pool.arena import Arena, ArenaKey
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import evict, remove
from kvstore.core.values.slots import ExtentSlots

LEAVES = 1000


class CountingQueue(EntryQueue):
    """A queue that counts what is taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.pops = 0

    def pop(self) -> None:
        """Count, and take the first out."""
        self.pops += 1
        super().pop()


class CountingPolicy(LeastRecentlyUsed):
    """The policy, counting the entries that it takes out of its order."""

    def __init__(self) -> None:
        super().__init__()
        self.sweeps = 0
        self.queues = {0: CountingQueue()}

    @property
    def pops(self) -> int:
        """The number of entries that were taken out."""
        return self.queues[0].pops

    def _sweep(self) -> None:
        """Count, and sweep."""
        self.sweeps += 1
        super()._sweep()


def letter(number: int) -> str:
    """Returns a letter of its own for each number."""
    return chr(0x4000 + number)


def make(slots: int) -> tuple[Namespace, CountingPolicy]:
    """Returns an empty namespace whose policy counts."""
    policy = CountingPolicy()
    arena = Arena(1, ArenaKey(TENANT, 64, 1), policy, make_tenant())
    arena.add_extent(ExtentSlots(1, slots))
    return make_namespace(arena=arena), policy


@pytest.fixture
def crowd() -> tuple[Namespace, CountingPolicy]:
    """Provides a namespace of a thousand leaves, used one after the other."""
    namespace, policy = make(LEAVES)
    for use in range(LEAVES):
        plant(namespace, letter(use), use)
    return namespace, policy


@pytest.mark.parametrize("pages", [1, 2, 10])
def test_an_eviction_never_looks_at_all_leaves(
    crowd: tuple[Namespace, CountingPolicy], pages: int
) -> None:
    """A nomination among a thousand leaves checks as many as there are victims."""
    _, policy = crowd
    assert len(policy.nominate(pages)) == pages
    assert policy.pops == pages


def test_a_leaf_touched_many_times_is_looked_at_once_more(
    crowd: tuple[Namespace, CountingPolicy],
) -> None:
    """However often a leaf was used since it was offered, it is put back once."""
    namespace, policy = crowd
    uses = count(LEAVES)
    for _ in range(50):
        node_at(namespace.index, letter(0)).last_use = next(uses)
    (victim,) = policy.nominate(1)
    assert victim.leaf is node_at(namespace.index, letter(1))
    assert policy.pops == 2


def test_offering_again_makes_no_second_entry(crowd: tuple[Namespace, CountingPolicy]) -> None:
    """A leaf offered ten times stands in the order once."""
    namespace, policy = crowd
    for _ in range(10):
        policy.offer(node_at(namespace.index, letter(0)))
    assert len(policy.nominate(2)) == 2
    assert policy.pops == 2


def test_a_long_edge_is_looked_at_once() -> None:
    """Many pages of one edge cost one look, not one a page."""
    namespace, policy = make(500)
    plant(namespace, "".join(map(letter, range(500))), 1)
    assert policy.nominate(499)[0].pages == 499
    assert policy.pops == 1


def test_held_leaves_are_looked_at_once_until_offered() -> None:
    """A leaf that is held whole is passed over once, and then not again until it is offered."""
    namespace, policy = make(100)
    for use in range(50):
        node = plant(namespace, letter(use), use).node
        Anchor(Hold(use, namespace, 0.0), node, 1)
    plant(namespace, "abc", 99)
    evict(policy.nominate(1))
    first = policy.pops
    assert first == 51
    evict(policy.nominate(1))
    assert policy.pops == first + 1


def test_a_failed_nomination_looks_at_each_once(crowd: tuple[Namespace, CountingPolicy]) -> None:
    """A nomination of too many pages checks every leaf once."""
    _, policy = crowd
    assert policy.nominate(LEAVES + 1) == []
    assert policy.pops == LEAVES
    assert len(policy.nominate(LEAVES)) == LEAVES


def test_the_order_does_not_grow_with_what_went() -> None:
    """A bounded number of entries is left of a thousand leaves that came and went."""
    namespace, policy = make(10)
    for use in range(1000):
        assert remove(plant(namespace, letter(use), use).node).evicted_page_count == 1
    assert policy.nominate(1) == []
    assert policy.pops <= SWEEP_FROM + 1


def test_sweeps_get_rarer_as_the_order_grows(crowd: tuple[Namespace, CountingPolicy]) -> None:
    """A sweep, which costs all entries, comes when these have doubled: a few for a thousand."""
    _, policy = crowd
    assert 0 < policy.sweeps <= (LEAVES // SWEEP_FROM).bit_length()


def test_few_entries_are_not_swept() -> None:
    """Below the least number that is worth it nothing is swept."""
    namespace, policy = make(SWEEP_FROM)
    for use in range(SWEEP_FROM):
        plant(namespace, letter(use), use)
    assert policy.sweeps == 0
