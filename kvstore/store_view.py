"""The view of a server for its metrics, collected from its parts."""

from kvstore import __version__
from kvstore.core import Identity
from kvstore.metrics.view import ThreadView, View
from kvstore.rpc.health.probes import OwnerProbe
from kvstore.rpc.health.watchdog import READINESS, Health
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore

# An admin, who sees all tenants. No call uses this identity.
LOOKER = Identity("", admin=True)


class StoreView:
    """Makes views of a store. Each holds the store's mutex for as long as GetStats does."""

    def __init__(self, store: KVStore, health: Health, owner: OwnerProbe, clock: Clock) -> None:
        self._store = store
        self._health = health
        self._owner = owner
        self._clock = clock

    def __call__(self) -> View:
        """Returns the current view."""
        store, began = self._store, self._clock()
        stats = store.stats(LOOKER)
        now = self._clock()
        return View(
            stats=stats,
            requests=store.traffic.all_requests(),
            tier_bytes=store.tier_bytes,
            moves=store.mover.ledger.read(),
            tier3=store.tier3.use(),
            calls={
                (lane, method, outcome): counts
                for lane, times in store.call_times.items()
                for (method, outcome), counts in times.read().items()
            },
            thrash=store.thrash.ratio,
            events=store.events.use(),
            threads={
                name: ThreadView(max(now - each.last_tick, 0.0), getattr(each, "failure_count", 0))
                for name, each in self._health.threads.items()
            },
            ready=self._health.says(READINESS),
            mutex_waits=self._owner.waits.read(),
            seconds=now - began,
            version=__version__,
            prefix_cache_backend=store.prefix_cache_backend,
        )
