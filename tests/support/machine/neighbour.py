"""Another tenant beside the cache machine's own, under the same lease ids and small quotas."""

from kvstore import errors
from kvstore.core.cache import PrefixCache
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Quotas
from kvstore.core.values.requests import Caller, Identity, ReservationRequest

NEIGHBOUR = Identity("tenant-b")
QUOTAS = Quotas(leases=2, pins=1)
NAMESPACE_ID = b"b" * 16
EXTENT_ID = 1000
SLOTS = 4
LAYOUT = PageLayout(2, 64, 1, OpaqueContent(b"theirs"))


class Neighbour:
    """The neighbour's holds by its own count: the pages of each lease's reservations."""

    def __init__(self, cache: PrefixCache) -> None:
        self.leases: dict[bytes, dict[int, int]] = {}
        self._cache = cache

    def arrive(self, lease_id: bytes, process_id: int, now: float) -> None:
        """Be granted a lease, and open and map the neighbour's own namespace."""
        caller = self._caller(lease_id)
        try:
            self._cache.grant(caller, ttl=20.0, display_name="n", features=(), now=now)
        except errors.QuotaExceeded:
            assert len(self.leases) == QUOTAS.leases
            return
        except errors.Tombstoned:
            # It had this id before, and no other tenant's tombstone counts.
            assert lease_id in self._cache.table.tenants[NEIGHBOUR.tenant].lease_tombstones
            return
        if lease_id in self.leases:
            return
        assert len(self.leases) < QUOTAS.leases
        self.leases[lease_id] = {}
        self._cache.bind(caller, process_id=process_id, pid=process_id, uid=2)
        identity = NamespaceIdentity(b"model")
        space = self._cache.open_namespace(caller, identity, LAYOUT, NAMESPACE_ID, now)
        if not space.arena.extents:
            self._cache.add_extent(space.arena.arena_id, EXTENT_ID, SLOTS)
        self._cache.acknowledge(process_id, [EXTENT_ID])

    def reserve(self, lease_id: bytes, reservation_id: int, pages: int, now: float) -> None:
        """Reserves slots of its own arena, up to its quota of reservations."""
        held = sum(sum(each.values()) for each in self.leases.values())
        count = sum(map(len, self.leases.values()))
        request = ReservationRequest(reservation_id, 0, pages)
        try:
            self._cache.reserve(self._caller(lease_id), NAMESPACE_ID, [request], now)
        except errors.QuotaExceeded:
            assert count == QUOTAS.pins
            return
        except errors.PoolExhausted as error:
            available = error.metadata["available"]
        else:
            available = ""
        if available:
            assert int(available) == SLOTS - held < pages
            return
        assert count < QUOTAS.pins
        assert held + pages <= SLOTS
        self.leases[lease_id][reservation_id] = pages

    def abort(self, lease_id: bytes, now: float) -> None:
        """Gives all reservations of a lease back."""
        self._cache.abort(self._caller(lease_id), list(self.leases[lease_id]), now)
        self.leases[lease_id].clear()

    def leave(self, lease_id: bytes, now: float) -> None:
        """Revokes a lease, if the neighbour has it: what an admin's revoke of its id calls for."""
        if lease_id in self.leases:
            self._cache.revoke(self._caller(lease_id), now)
            while self._cache.table.ending:
                self._cache.return_holds()
            del self.leases[lease_id]

    def renew(self, now: float) -> None:
        """Keeps all leases."""
        for lease_id in self.leases:
            self._cache.renew(self._caller(lease_id), now)

    def _caller(self, lease_id: bytes) -> Caller:
        return Caller(NEIGHBOUR, lease_id, b"the neighbour's", self._cache.epoch)
