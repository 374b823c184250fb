"""The order in which tenants give memory to each other."""

import pytest

from core.core_builders import make_tenant
from kvstore.core.eviction.policies import LeastRecentlyUsed
from kvstore.core.pool.arena import Arena, ArenaKey
from kvstore.core.values.limits import Quotas, QuotaTable
from kvstore.core.values.slots import ExtentSlots
from kvstore.service.memory.fair_share import Shares

SLOT = 10


class Tier:
    """Arenas whose extents have 100 bytes unless the test says otherwise, of 400 bytes in all."""

    def __init__(self, **shares: int) -> None:
        self.arenas: list[Arena] = []
        self.in_use: set[int] = set()
        self.quotas = QuotaTable(
            by_tenant={tenant: Quotas(share_bytes=each) for tenant, each in shares.items()}
        )

    def arena(self, tenant: str, *sizes: int, idle: bool = False) -> Arena:
        """Adds an arena with extents of these sizes, numbered after the arena: 11, 12, ..."""
        number = len(self.arenas) + 1
        key = ArenaKey(tenant, SLOT, 1)
        arena = Arena(number, key, LeastRecentlyUsed(), make_tenant())
        for k, size in enumerate(sizes, start=1):
            arena.add_extent(ExtentSlots(10 * number + k, size // SLOT))
        self.arenas.append(arena)
        if not idle:
            self.in_use.add(number)
        return arena

    def offers(self, asker: Arena, *, own_only: bool = False) -> list[tuple[int, list[int]]]:
        """Returns who may give an extent, and which."""
        shares = Shares(self.arenas, self.in_use, budget_bytes=400, quotas=self.quotas)
        offers = shares.offers(asker, 100, own_only=own_only)
        return [(each.arena.arena_id, sorted(each.extent_ids)) for each in offers]


def test_whoever_is_over_its_share_gives() -> None:
    """A tenant that came when all was given out may have an extent of the one that has all."""
    tier = Tier()
    tier.arena("a", 100, 100, 100, 100)
    asker = tier.arena("b")
    assert tier.offers(asker) == [(1, [11, 12, 13, 14])]


@pytest.mark.parametrize(
    ("a", "b", "moves"),
    [
        ((100, 100, 100), (100,), True),
        ((100, 100), (100, 100), False),
        ((100, 100), (100,), False),
        ((100,), (), False),
        ((100, 100), (), True),
    ],
)
def test_nobody_comes_to_have_less_than_who_asked(
    a: tuple[int, ...], b: tuple[int, ...], *, moves: bool
) -> None:
    """An extent moves only where the giver keeps as much as the asker comes to have."""
    tier = Tier()
    tier.arena("a", *a)
    asker = tier.arena("b", *b)
    for other in ("c", "d")[: 4 - len(a) - len(b)]:
        tier.arena(other, 100)
    assert bool(tier.offers(asker)) == moves


def test_the_one_most_over_its_share_comes_first() -> None:
    """The tenant that is most over its share is asked first."""
    tier = Tier(b=50)
    tier.arena("a", 100, 100)
    tier.arena("b", 100, 50)
    asker = tier.arena("c")
    assert [number for number, _ in tier.offers(asker)] == [2, 1]


def test_a_share_that_was_promised_is_kept() -> None:
    """Nobody gives below what its quotas say, whoever asks; what is beyond, it gives."""
    tier = Tier(a=300)
    tier.arena("a", 100, 100, 100)
    asker = tier.arena("b", 100)
    assert tier.offers(asker) == []
    tier.arenas[0].add_extent(ExtentSlots(19, 5))
    asker.retiring.add(21)
    assert tier.offers(asker) == [(1, [19])]


def test_a_share_of_nothing_gives_all() -> None:
    """A tenant that was promised nothing is over its share with every byte."""
    tier = Tier(a=0)
    tier.arena("a", 100)
    assert tier.offers(tier.arena("b")) == [(1, [11])]


def test_whoever_has_its_share_is_given_nothing() -> None:
    """Having as much as everybody, an asker has to make do, whatever others have."""
    tier = Tier(b=100)
    tier.arena("a", 100, 100, 100)
    assert tier.offers(tier.arena("b", 100)) == []


def test_what_retires_is_not_counted_nor_given_again() -> None:
    """A giver is as rich as its lasting extents."""
    tier = Tier()
    tier.arena("a", 100, 100, 100).retiring.update({11, 12})
    assert tier.offers(tier.arena("b", 100)) == []


def test_an_arena_that_nobody_uses_gives_first() -> None:
    """A model that no worker runs any more gives to its tenant's others, all that it has."""
    tier = Tier()
    tier.arena("a", 100, 100)
    tier.arena("a", 100, 100, idle=True)
    asker = tier.arena("a", 100)
    assert tier.offers(asker) == [(2, [21, 22])]
    assert tier.offers(asker, own_only=True) == [(2, [21, 22])]
    assert tier.offers(tier.arena("b"))[0] == (2, [21, 22])


def test_an_arena_with_nothing_takes_from_its_own_tenant() -> None:
    """The second model of a tenant that has all gets an extent of the first, which keeps one."""
    tier = Tier()
    tier.arena("a", 100, 100)
    tier.arena("a", 100)
    asker = tier.arena("a")
    assert tier.offers(asker) == [(1, [11, 12])]
    asker.add_extent(ExtentSlots(31, 10))
    assert tier.offers(asker) == []
