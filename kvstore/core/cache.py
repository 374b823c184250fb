"""The cache as a state machine: every verb, in one list.

A method either does all that it says, or raises and changes nothing. It has a single owner and is
not thread-safe: the service calls it under one mutex, with the time.
"""

from collections.abc import Iterator

from kvstore.core.cache_state import CacheState
from kvstore.core.eviction.policies import LeastRecentlyUsed
from kvstore.core.eviction.protocol import PolicyFactory
from kvstore.core.index.protocol import IndexFactory
from kvstore.core.index.radix import RadixIndex
from kvstore.core.pool.arena import Recycled
from kvstore.core.pool.tenant import TenantKeys, no_key
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.tiers.disk_reads import DiskReads
from kvstore.core.tiers.disk_writes import DiskWrites
from kvstore.core.tiers.group_reads import GroupReads
from kvstore.core.tiers.moves import Moves
from kvstore.core.tiers.pin_refreshes import PinRefreshes
from kvstore.core.tiers.read_slots import RecentUses
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.core.verbs.insert import Inserting
from kvstore.core.verbs.lease_lifecycle import Lifecycle
from kvstore.core.verbs.match import Matching
from kvstore.core.verbs.namespaces import Namespaces
from kvstore.core.verbs.pin_prefix import PinningPrefixes
from kvstore.core.verbs.reclaim import Reclaiming
from kvstore.core.verbs.release import Releasing
from kvstore.core.verbs.reserve import Reserving
from kvstore.core.verbs.verify import Verifying


class PrefixCache:
    """One epoch's cache, made of parts over one ``state``.

    Each verb is a method of the part that implements it, so a call has no extra step.
    ``policy`` makes the eviction policy of each arena, and ``index`` the index of each
    namespace. Without ``quotas`` all tenants have the default ones. ``arena_ids`` are the
    arenas' ids, counted from 1 by default. ``recycled`` receives all slots that became FREE.
    With a ``tier_policy``, namespaces have an arena in tier 2 too. With ``page_stores``,
    the number of page stores of tier 3, the cache tracks pages that are to be written to each or
    removed from all. ``tenant_key`` returns a secret of a tenant by its name, or nothing: stores
    share pages of a tenant only if it is the same in both.
    """

    def __init__(  # noqa: PLR0913, PLR0915 - each part can be left out; one line for each verb
        self,
        epoch: int,
        limits: Limits,
        policy: PolicyFactory = LeastRecentlyUsed,
        *,
        quotas: QuotaTable | None = None,
        arena_ids: Iterator[int] | None = None,
        recycled: Recycled | None = None,
        index: IndexFactory = RadixIndex,
        tier_policy: TierPolicy | None = None,
        page_stores: int = 0,
        tenant_key: TenantKeys = no_key,
    ) -> None:
        state = CacheState(
            epoch,
            limits,
            quotas,
            tier_policy=tier_policy,
            page_stores=page_stores,
            tenant_key=tenant_key,
        )
        lifecycle = Lifecycle(state)
        matching, releasing = Matching(state), Releasing(state)
        reserving, reclaiming = Reserving(state, matching), Reclaiming(state)
        inserting, verifying = Inserting(state, reclaiming), Verifying(state)
        namespaces = Namespaces(state, policy, index, arena_ids, recycled)
        named_pins = PinningPrefixes(state)
        moves, writes, reads = Moves(state), DiskWrites(state), DiskReads(state)
        group_reads, refreshes = GroupReads(state), PinRefreshes(state)
        self.state = state
        self.recent_uses = RecentUses()
        # Leases and their processes.
        self.grant = lifecycle.grant
        self.renew = lifecycle.renew
        self.revoke = lifecycle.revoke
        self.expire = lifecycle.expire
        self.end = lifecycle.end
        self.return_holds = lifecycle.return_holds
        self.change_rates = lifecycle.change_rates
        self.bind = lifecycle.bind
        self.process_died = lifecycle.process_died
        self.disconnected = lifecycle.disconnected
        self.give_extents = lifecycle.give_extents
        self.acknowledge = lifecycle.acknowledge
        self.unmapped = lifecycle.unmapped
        self.extents_owed = lifecycle.extents_owed
        # The request path.
        self.match = matching.match
        self.match_with_checks = matching.match_with_checks
        self.acquire = reserving.acquire
        self.acquire_with_checks = reserving.acquire_with_checks
        self.reserve = reserving.reserve
        self.insert = inserting.insert
        self.release = releasing.release
        self.abort = releasing.abort
        self.remove_corrupt = verifying.remove_corrupt
        self.remove_condemned = verifying.remove_condemned
        self.settle = verifying.settle
        self.withdraw = verifying.withdraw
        # Namespaces, and named pins in them.
        self.namespace = state.namespace
        self.visible_namespaces = state.visible_namespaces
        self.open_namespace = namespaces.open_namespace
        self.peek = namespaces.peek
        self.evict_prefix = namespaces.evict_prefix
        self.thin = namespaces.thin
        self.revise = namespaces.revise
        self.delete_namespace = namespaces.delete_namespace
        self.restore_namespace = namespaces.restore
        self.restore_arena = namespaces.restore_arena
        self.pin_prefix = named_pins.pin_prefix
        self.unpin_prefix = named_pins.unpin_prefix
        self.expire_named_pins = named_pins.expire_named_pins
        self.visible_named_pins = named_pins.visible_named_pins
        # Memory.
        self.visible_arenas = state.visible_arenas
        self.add_extent = namespaces.add_extent
        self.retire_extent = reclaiming.retire_extent
        self.begin_retirement = reclaiming.begin_retirement
        self.survey = reclaiming.survey
        self.cheapest_extent = reclaiming.cheapest_extent
        self.has_named_pin = reclaiming.has_named_pin
        self.emptied_extents = reclaiming.emptied_extents
        self.extents_to_unmap = reclaiming.extents_to_unmap
        self.remove_extent = reclaiming.remove_extent
        # Other tiers.
        self.moves = moves.under_way
        self.moving = moves.sources
        self.moves_wanted = moves.moves_wanted
        self.plan_moves = moves.plan_moves
        self.plan_promotion = moves.plan_promotion
        self.finish_moves = moves.finish_moves
        self.disk_writes = writes.under_way
        self.writes_wanted = writes.writes_wanted
        self.plan_writes = writes.plan_writes
        self.bytes_under_way = writes.bytes_under_way
        self.write_is_stale = writes.write_is_stale
        self.finish_writes = writes.finish_writes
        self.forget_kept = writes.forget_kept
        self.write_nothing = writes.write_nothing
        self.take_removed = writes.take_removed
        self.finish_removed = writes.finish_removed
        self.disk_reads = reads.under_way
        self.reads_in = reads.reads_in
        self.locate = reads.locate
        self.begin_read = reads.begin_read
        self.extend_read = reads.extend_read
        self.take_run = reads.take_run
        self.publish_run = reads.publish_run
        self.finish_read = reads.finish_read
        self.group_reads = group_reads.under_way
        self.group_reads_in = group_reads.reads_in
        self.locate_groups = group_reads.locate_groups
        self.begin_group_read = group_reads.begin_group_read
        self.finish_group_read = group_reads.finish_group_read
        self.all_named_pins = refreshes.all_named_pins
        self.plan_refresh = refreshes.plan_refresh
        self.finish_slice = refreshes.finish_slice
        self.finish_refresh = refreshes.finish_refresh
        # The state that others read.
        self.epoch = state.epoch
        self.limits = state.limits
        self.events = state.events
        self.counters = state.counters
        self.table = state.table
        self.namespaces = state.namespaces
        self.arenas = state.arenas
