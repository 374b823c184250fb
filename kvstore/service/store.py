"""The store: one cache, one mutex, one clock, and every verb in one list.

Each call is one method of the core under the mutex, with the time of the moment. Slow work is
done outside of the mutex: allocating memory, reading pages, logging, and waking listeners.
"""

import secrets
from collections.abc import Callable, Collection, Iterable
from collections.abc import Sequence as Items
from contextlib import suppress
from dataclasses import replace
from threading import Lock

import structlog

from kvstore.core import (
    Caller,
    Grant,
    GroupWindow,
    Identity,
    Inserted,
    Limits,
    NamespaceIdentity,
    PageLayout,
    Peeked,
    PrefixCache,
    QuotaTable,
    Removed,
    ReservationRequest,
    ReuseHint,
    Sequence,
    SlotMoves,
)
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.namespace import Namespace
from kvstore.errors import NamespaceNotFound, PoolExhausted
from kvstore.service.administration import Administration, Listing, NamedPinKeeper
from kvstore.service.block_feed import BlockFeed, KvEventUse
from kvstore.service.call_durations import CallTimes
from kvstore.service.clock import Clock
from kvstore.service.event_watches import EventWatches
from kvstore.service.journal_cleaning import JournalCleaning
from kvstore.service.leases import Leases
from kvstore.service.matching import Matching, Sampler
from kvstore.service.memory.arena_growth import WATERMARK, Growth
from kvstore.service.page_io.memory_mover import Mover
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.service.page_io.tier3 import Tier3
from kvstore.service.tenancy.rate_limit import Traffic
from kvstore.service.thrash_watch import ThrashWatch
from kvstore.storage.arenas import Arenas
from kvstore.storage.extent import CudaIpcExport, ExtentDescription, HostExport
from kvstore.storage.memory_tiers import Tiers
from kvstore.succession.store_succession import Succession

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The protocol describes the extents of these tiers, as ``extents`` returns them.
__all__ = ["CudaIpcExport", "ExtentDescription", "HostExport", "KVStore"]

NAMESPACE_ID_BYTES = 16
# Allocate the next extent when this fraction of one is left, by tier. Tier 2 grows a whole extent
# ahead: demotions evict rather than wait.
WATERMARKS = {1: WATERMARK, 2: 1.0}


class KVStore:
    """The whole store, made of parts over one cache and one mutex. Thread-safe.

    Each verb is a method of one part, or combines several parts here. Raises what the core's
    methods raise.
    """

    def __init__(
        self,
        cache: PrefixCache,
        *,
        arenas: Arenas,
        clock: Clock,
        sampler: Sampler | None = None,
        lower: Arenas | None = None,
        slow_tiers: Items[SlowTier] = (),
        prefix_cache_backend: str = "radix",
        succession: Succession | None = None,
    ) -> None:
        """Makes a store; ``lower`` is tier 2's memory. ``slow_tiers`` are tier 3.

        ``cache`` has to have the same tiers, and a page store for each one that is present, in
        the same order.

        Without ``sampler`` the store verifies no page. ``prefix_cache_backend`` names the index.
        Without ``succession`` the memory ends with this process.
        """
        self.succession = Succession() if succession is None else succession
        self._cache, self._clock, self.started_at = cache, clock, clock()
        self._mutex = mutex = Lock()
        self.prefix_cache_backend = prefix_cache_backend
        self.limits: Limits = cache.limits
        self._memory = Tiers(arenas) if lower is None else Tiers(arenas, lower)
        self.device = self._memory.device
        leases, admin = Leases(cache, mutex, clock), Administration(cache, mutex, clock)
        self._leases, self._admin = leases, admin
        self.cleaning = JournalCleaning(self.succession, mutex, clock)
        self.announcer = leases.announcer
        self.device.on_lost(leases.begin_draining)
        self.growths = [
            Growth(
                cache,
                self._mutex,
                arenas=each,
                announcer=self.announcer,
                clock=clock,
                watermark=WATERMARKS[each.tier],
            )
            for each in self._memory.arenas
        ]
        self.growth = self.growths[0]
        self.mover = Mover(
            cache, self._mutex, memory=self._memory, clock=clock, took=self._took, prove=self.prove
        )
        self.listing = Listing(cache, self._mutex, clock)
        self.events = EventWatches(cache, self._mutex, leases.require_open)
        # Returns the counts of the KV events of each tenant that has some.
        self.kv_event_uses: Callable[[], list[KvEventUse]] = list
        self.named_pins = NamedPinKeeper(cache, self._mutex, clock)
        self.thrash = ThrashWatch(cache, self._mutex, clock)
        self.traffic = Traffic(cache.state.quotas, clock)
        # By transport. A transport without an entry when its server is made is not timed.
        self.call_times: dict[str, CallTimes] = {}
        self.tier3 = Tier3(
            cache,
            self._mutex,
            memory=self._memory,
            tiers=slow_tiers,
            clock=clock,
            took=self._took,
            revise=admin.revise,
        )
        self._sampler = sampler or Sampler()
        matching = Matching(
            cache,
            mutex,
            clock=clock,
            leases=leases,
            memory=self._memory,
            sampler=self._sampler,
            growth=self.growth,
            mover=self.mover,
            tier3=self.tier3,
        )
        # Leases and their processes.
        self.begin_draining = leases.begin_draining
        self.wait_drained = leases.wait_drained
        self.grant = leases.grant
        self.renew = leases.renew
        self.revoke = leases.revoke
        self.require_feature = leases.require_feature
        self.expire = leases.expire
        self.bind = leases.bind
        self.acknowledge = leases.acknowledge
        self.unmapped = leases.unmapped
        self.extents_to_unmap = leases.extents_to_unmap
        self.disconnected = leases.disconnected
        self.process_died = leases.process_died
        self.attached_process_ids = leases.attached_process_ids
        self.watched_process_ids = leases.watched_process_ids
        # The request path. The other verbs of it are below.
        self.match = matching.match
        self.acquire = matching.acquire
        self.prefetch = matching.prefetch
        self.remove_condemned = matching.remove_condemned
        # Administration.
        self.responds = admin.responds
        self.stats = admin.stats
        self.stats_in_parts = admin.stats_in_parts
        self.holds = admin.holds
        self.prefixes = admin.prefixes

    @property
    def epoch(self) -> int:
        """The store's epoch: another one if the store has other memory than before."""
        return self._cache.epoch

    @property
    def is_draining(self) -> bool:
        """True once the store takes no new work, because it is about to stop."""
        return self._leases.draining

    @property
    def quotas(self) -> QuotaTable:
        """The quotas of the tenants."""
        return self._cache.state.quotas

    def change_rates(self, quotas: QuotaTable) -> None:
        """Replaces the request rates of the tenants. All other quotas stay as they are."""
        with self._mutex:
            self._cache.change_rates(quotas)
            changed = self._cache.state.quotas
        self.traffic.change_rates(changed)

    def follow_blocks(self) -> BlockFeed:
        """Returns the changes of all blocks from now on. At most once, before it serves."""
        return BlockFeed(self._cache, self._mutex)

    def change_verify_rate(self, rate: float) -> None:
        """Sets the share of answered pages that are read first, from 0 to 1."""
        with self._mutex:
            self._sampler.rate = rate

    def restart_ttls(self) -> None:
        """Begins the time to live of each lease anew, since nobody could renew it until now."""
        now = self._clock()
        with self._mutex:
            for lease in self._cache.table.leases.values():
                self._cache.table.renew(lease, now)

    def freeze(self, patience: float) -> bool:
        """Takes the mutex for good, so that no call changes anything any more.

        Returns False if it is not free within ``patience`` seconds.
        """
        return self._mutex.acquire(timeout=patience)

    def uptime(self) -> float:
        """Returns the time since the start, in seconds."""
        return self._clock() - self.started_at

    @property
    def tier_bytes(self) -> dict[int, int]:
        """The number of bytes that each memory tier may take."""
        return {each.tier: each.budget_bytes for each in self._memory.arenas}

    # Namespaces and memory.

    def open_namespace(
        self, caller: Caller, identity: NamespaceIdentity, layout: PageLayout
    ) -> Namespace:
        """Returns the namespace of this identity, whose arena has at least one extent.

        The lease's processes receive its arena's extents from now on. Raises StoreDraining, besides
        the errors of the core. Raises PoolExhausted if no memory is available for the first extent.
        The namespace is open then, and opening it again retries.
        """
        self._leases.require_open()
        fresh_id = secrets.token_bytes(NAMESPACE_ID_BYTES)
        with self._mutex:
            namespace = self._cache.open_namespace(
                caller, identity, layout, fresh_id, self._clock()
            )
        self.growth.begin(namespace.arena)
        for growth, arena in zip(self.growths[1:], namespace.arenas()[1:], strict=True):
            # Without memory in tier 2, pages stay in tier 1 or are evicted.
            with suppress(PoolExhausted):
                growth.begin(arena)
        self.announcer.announce()
        return namespace

    def hand_out(
        self, process_id: int, but: Collection[int] = (), *, most: int | None = None
    ) -> list[ExtentDescription]:
        """Returns at most ``most`` extents that a process must map and has not acknowledged.

        They count as given to it from now on. Leaves out those of ``but``.
        """
        with self._mutex:
            owed = [each for each in self._cache.extents_owed(process_id) if each not in but]
        wrong = self.prove(owed[:most])
        with self._mutex:
            # Some may have been destroyed meanwhile.
            right = set(owed[:most]).difference(wrong)
            right &= set(self._cache.extents_owed(process_id))
            self._cache.give_extents(process_id, right)
            return self._memory.describe(sorted(right))

    def hand_out_again(
        self, process_id: int, extent_ids: Collection[int]
    ) -> list[ExtentDescription]:
        """Returns those of some extents that a process may have mapped before.

        They count as given to it from now on.
        """
        right = set(extent_ids).difference(self.prove(extent_ids))
        with self._mutex:
            return self._memory.describe(self._cache.give_extents(process_id, right))

    def prove(self, extent_ids: Collection[int]) -> list[int]:
        """Returns which of some extents have other bytes than were written, by samples.

        Only inherited extents are sampled, once each. Wrong ones retire, and nobody gets them.
        Called without the mutex.
        """
        known = set(self.succession.samples.wrong)
        wrong = self.succession.samples.prove(extent_ids)
        self._retire_wrong(set(wrong) - known)
        return wrong

    def prove_all(self) -> None:
        """Samples all inherited extents that nobody asked for yet."""
        self._retire_wrong(self.succession.samples.prove_all())

    def count_left(self) -> None:
        """Grows again once an earlier store's memory is free, which counted as taken."""
        if self.succession.count_left():
            for growth in self.growths:
                growth.due.set()

    def _retire_wrong(self, extent_ids: Iterable[int]) -> None:
        for extent_id in extent_ids:
            log.error(
                "extent_wrong", extent_id=extent_id, why="a page has other bytes than were written"
            )
            for growth in self.growths:
                growth.retire(extent_id)

    def extents(self, identity: Identity) -> list[ExtentDescription]:
        """Returns the extents of all arenas that the identity may see."""
        with self._mutex:
            arenas = self._cache.visible_arenas(identity)
            return self._memory.describe(each for arena in arenas for each in arena.extents)

    def evict_prefix(self, identity: Identity, namespace_id: bytes, tokens: bytes) -> Removed:
        """Removes all pages that hold a prefix's last token, and all pages below them.

        They have left tier 3 too when this returns, so no restart restores them. If tier 3 did
        not confirm that in time, the answer is ``unsettled``.
        """
        removed = self._admin.evict_prefix(identity, namespace_id, tokens)
        return replace(removed, unsettled=not self.tier3.removals.settle())

    def delete_namespace(self, identity: Identity, namespace_id: bytes) -> Removed:
        """Removes a namespace with all its pages, in tier 3 too. An unknown one succeeds.

        Logs one line.
        """
        try:
            removed = self._admin.delete_namespace(identity, namespace_id)
        except NamespaceNotFound:
            # A repeated call waits too until tier 3 has removed it.
            return Removed(0, 0, unsettled=not self.tier3.removals.settle())
        unsettled = not self.tier3.removals.settle()
        log.info(
            "namespace_deleted",
            namespace_id=namespace_id.hex(),
            by_tenant=identity.tenant,
            evicted_page_count=removed.evicted_page_count,
            detached_page_count=removed.detached_page_count,
        )
        self._look()
        return replace(removed, unsettled=unsettled)

    # The request path.

    def peek(
        self,
        identity: Identity,
        namespace_id: bytes,
        tokens: bytes,
        groups: tuple[GroupWindow, ...] = (),
        group_start_page: int = 0,
    ) -> Peeked:
        """Returns what a match would cover, and what tier 3 has. Changes nothing.

        ``groups`` and ``group_start_page`` are those of ``MatchOptions``.
        """
        with self._mutex:
            peeked = self._cache.peek(
                identity, namespace_id, tokens, self._clock(), groups, group_start_page
            )
        tier_3 = self.tier3.leading_tokens(identity, namespace_id, tokens)
        return replace(peeked, tier_3_token_count=tier_3)

    def reserve(
        self, caller: Caller, namespace_id: bytes, requests: Items[ReservationRequest]
    ) -> list[Grant]:
        """Reserves slots for all requests, evicting as needed, or raises PoolExhausted."""
        with self._mutex:
            try:
                grants = self._cache.reserve(caller, namespace_id, requests, self._clock())
            except PoolExhausted as error:
                self._note(namespace_id, int(error.metadata["requested"]))
                raise
            self._note(namespace_id)
            self.mover.note()
            return grants

    def insert(
        self,
        caller: Caller,
        reservation_id: int,
        sequence: Sequence,
        *,
        next_token: int | None = None,
        checksums: Items[int] = (),
        hint: ReuseHint | None = None,
        moves: SlotMoves | None = None,
    ) -> Inserted:
        """Publishes the next pages of a reservation. Pages inserted before are answered again.

        ``moves`` brings slots of another reservation, and pages of KV cache groups.
        """
        with self._mutex:
            inserted = self._cache.insert(
                caller,
                reservation_id,
                sequence,
                self._clock(),
                next_token=next_token,
                checksums=checksums,
                hint=hint,
                moves=moves,
            )
            state = self._cache.state
            if state.wanted is not None:
                self.mover.note()
            if state.disk is not None:
                self.tier3.note()
            return inserted

    def release(self, caller: Caller, pin_ids: Items[int]) -> None:
        """Releases pins; each id leaves a tombstone, known or not."""
        with self._mutex:
            self._cache.release(caller, pin_ids, self._clock())
        self._look()

    def abort(self, caller: Caller, reservation_ids: Items[int]) -> None:
        """Ends reservations; each id leaves a tombstone, known or not."""
        with self._mutex:
            changes = self._cache.abort(caller, reservation_ids, self._clock())
        self._leases.report(changes)
        self._look()

    def _note(self, namespace_id: bytes, wanted: int = 0) -> None:
        self.growth.note(self._cache.namespaces[namespace_id].arena, wanted)

    def _took(self, arena: Arena) -> None:
        self.growths[arena.tier - 1].note(arena)

    def _look(self) -> None:
        for growth in self.growths:
            growth.look()
