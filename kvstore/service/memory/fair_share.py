"""Fair shares of memory: the choice of a giver once a tier's budget is used up. Pure.

A tenant's share is what its quotas say. Without a quota it is an equal part of the budget among all
tenants that have memory, the asker included.

Extents are coarse, so no tenant has exactly its share. An extent moves only if the giver keeps at
least the part of its share that the asker reaches. It never takes the giver below a share from its
quotas. Each move makes the two more equal, so the moves end.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from kvstore.core import Quotas, QuotaTable
from kvstore.core.pool.arena import Arena


class Offer(NamedTuple):
    """An arena that may give any one of the listed extents."""

    arena: Arena
    extent_ids: list[int]


class Shares:
    """The division of a tier's bytes at one moment among the tenants of some arenas.

    ``in_use`` holds the numbers of the arenas in which some lease has a namespace.
    """

    def __init__(
        self, arenas: Iterable[Arena], in_use: set[int], *, budget_bytes: int, quotas: QuotaTable
    ) -> None:
        self._arenas = list(arenas)
        self._in_use = in_use
        self._budget_bytes = budget_bytes
        self._quotas = quotas
        self._bytes: dict[str, int] = {}
        for arena in self._arenas:
            before = self._bytes.get(arena.tenant, 0)
            self._bytes[arena.tenant] = before + arena.lasting_bytes

    def wealth(self, tenant: str, asker: str, gain: int = 0) -> float:
        """Returns the fraction of its share that a tenant would have with ``gain`` bytes more."""
        held = self._bytes.get(tenant, 0) + gain
        share = self._share(tenant, asker)
        return held / share if share else float("inf")

    def room(self, tenant: str) -> int:
        """Returns how many bytes a tenant is below its share."""
        return max(int(self._share(tenant, tenant)) - self._bytes.get(tenant, 0), 0)

    def offers(self, asker: Arena, gain: int, *, own_only: bool = False) -> Iterator[Offer]:
        """Yields the arenas that may give an extent for ``gain`` bytes of an arena, best first.

        Unused arenas of the same tenant come first. If the tenant is below its share, tenants above
        theirs follow, the one most above first, with unused arenas before large ones. If the arena
        has no extent, the same tenant's arenas come last, the largest first. ``own_only`` limits
        the offers to the same tenant.
        """
        own = [each for each in self._ordered(asker.tenant) if each is not asker]
        yield from _offers(each for each in own if self._is_idle(each))
        if not own_only and self.room(asker.tenant):
            yield from self._others(asker, gain)
        if not asker.lasting:
            yield from _offers(each for each in own if len(each.lasting) > 1)

    def _others(self, asker: Arena, gain: int) -> Iterator[Offer]:
        def over(tenant: str) -> float:
            return self.wealth(tenant, asker.tenant)

        for tenant in sorted(self._bytes, key=over, reverse=True):
            if tenant == asker.tenant or over(tenant) <= 1:
                continue
            for arena in self._ordered(tenant):
                ids = [each for each in arena.lasting if self._may_give(arena, each, asker, gain)]
                yield from _offers([arena], ids)

    def _may_give(self, arena: Arena, extent_id: int, asker: Arena, gain: int) -> bool:
        size = arena.extents[extent_id].slot_count * arena.slot_bytes
        kept = self._bytes[arena.tenant] - size
        if kept < (self._quotas.of(arena.tenant).share_bytes or 0):
            return False
        left = self.wealth(arena.tenant, asker.tenant, -size)
        return left >= self.wealth(asker.tenant, asker.tenant, min(gain, size))

    def _share(self, tenant: str, asker: str) -> float:
        quotas: Quotas = self._quotas.of(tenant)
        if quotas.share_bytes is not None:
            return quotas.share_bytes
        having = {each for each, held in self._bytes.items() if held} | {asker}
        return self._budget_bytes / len(having)

    def _ordered(self, tenant: str) -> list[Arena]:
        """Returns a tenant's arenas: unused ones first, then the largest."""
        mine = [each for each in self._arenas if each.tenant == tenant]
        return sorted(mine, key=lambda each: (not self._is_idle(each), -each.lasting_bytes))

    def _is_idle(self, arena: Arena) -> bool:
        return arena.arena_id not in self._in_use


def _offers(arenas: Iterable[Arena], extent_ids: list[int] | None = None) -> Iterator[Offer]:
    for arena in arenas:
        ids = sorted(arena.lasting) if extent_ids is None else extent_ids
        if ids:
            yield Offer(arena, ids)
