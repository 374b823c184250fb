"""Core's snapshots as the messages of lists and statistics."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

from google.protobuf.duration_pb2 import Duration

from kvstore import background
from kvstore.core import Limits, Quotas
from kvstore.core.stats import (
    ArenaStats,
    HoldStats,
    LeaseStats,
    NamedPinStats,
    NamespaceStats,
    PrefixStats,
    ProcessStats,
    Stats,
    TenantStats,
)
from kvstore.core.values.counters import Counters
from kvstore.core.values.slots import SlotState
from kvstore.rpc.wire.convert import identity_message, layout_message
from kvstore.service.block_feed import KvEventUse
from kvstore.service.page_io.slow_tier import TierState
from kvstore.service.page_io.tier3 import Tier3Use
from kvstore.service.store import CudaIpcExport, ExtentDescription, HostExport
from kvstore.service.tenancy.rate_limit import Requests
from kvstore.succession.store_succession import SuccessionUse
from kvstore.v1 import lease_pb2, named_pin_pb2, store_pb2, types_pb2


class ExportedExtents(NamedTuple):
    """Extents with handles, and the descriptors of the frame that carries them, in order."""

    messages: list[types_pb2.Extent]
    descriptors: tuple[int, ...]


def extent_message(extent: ExtentDescription) -> types_pb2.Extent:
    """Returns an extent with where its memory is, and nothing by which it could be had."""
    message = types_pb2.Extent(
        extent_id=extent.shape.extent_id,
        arena_id=extent.shape.arena_id,
        tier=types_pb2.Tier.Name(extent.shape.tier),
        slot_count=extent.shape.slot_count,
        slot_bytes=extent.shape.slot_bytes,
        offset=extent.offset,
        arena_offset=extent.shape.arena_offset,
    )
    match extent.export:
        case HostExport(size_bytes=size_bytes):
            message.host.size_bytes = size_bytes
        case CudaIpcExport(device_uuid=device_uuid, size_bytes=size_bytes):
            message.cuda_ipc.device_uuid = device_uuid
            message.cuda_ipc.size_bytes = size_bytes
    if extent.generation_table is not None:
        message.generation_table.size_bytes = extent.generation_table.size_bytes
    return message


def exported_extents(extents: Sequence[ExtentDescription]) -> ExportedExtents:
    """Returns extents for a frame, each with its handle or the indexes of its descriptors."""
    messages: list[types_pb2.Extent] = []
    descriptors: list[int] = []
    for extent in extents:
        message = extent_message(extent)
        match extent.export:
            case HostExport(descriptor=descriptor):
                message.host.descriptor_index = len(descriptors)
                descriptors.append(descriptor)
            case CudaIpcExport(ipc_handle=ipc_handle):
                message.cuda_ipc.ipc_handle = ipc_handle
        if extent.generation_table is not None:
            message.generation_table.descriptor_index = len(descriptors)
            descriptors.append(extent.generation_table.descriptor)
        messages.append(message)
    return ExportedExtents(messages, tuple(descriptors))


STATES = {
    TierState.ABSENT: store_pb2.Tier3Stats.STATE_ABSENT,
    TierState.OPEN: store_pb2.Tier3Stats.STATE_OPEN,
    # No disk is ever away.
    TierState.AWAY: store_pb2.Tier3Stats.STATE_FAILED,
    TierState.FAILED: store_pb2.Tier3Stats.STATE_FAILED,
}


def tier_3_message(use: Tier3Use, *, whole: bool) -> store_pb2.Tier3Stats:
    """Returns what tier 3 has; its state alone unless ``whole``, for all tenants share it."""
    disk = use.disk
    message = store_pb2.Tier3Stats(state=STATES[disk.state])
    if not whole:
        return message
    counters = disk.counters
    message.size_bytes = disk.size_bytes
    message.page_count = disk.page_count
    message.slot_count = disk.slot_count
    message.written_page_count = counters.written_pages
    message.refused_page_count = counters.refused_writes
    message.read_page_count = counters.read_pages
    message.corrupt_page_count = counters.corrupt_pages
    message.unreadable_page_count = counters.unreadable_pages
    message.evicted_page_count = counters.evicted_pages
    message.removed_page_count = counters.removed_pages
    message.bytes_per_second = use.bandwidth
    message.declined_load_count = use.declined_count
    message.recovered_page_count = counters.recovered_pages
    message.torn_slot_count = counters.torn_slots
    return message


def succession_message(use: SuccessionUse | None, *, whole: bool) -> store_pb2.SuccessionStats:
    """Returns whether the memory outlives the server; only its state unless ``whole``.

    ``use`` is None without a holder.
    """
    if use is None:
        return store_pb2.SuccessionStats(state=store_pb2.SuccessionStats.STATE_OFF)
    message = store_pb2.SuccessionStats(state=_succession_state(use))
    if not whole:
        return message
    message.holder = use.holder
    message.behind_count = use.behind
    message.journal_used_bytes = use.journal_used_bytes
    message.journal_size_bytes = use.journal_capacity_bytes
    message.failure_reason = use.failure or use.refusal
    message.recovered_page_count = use.recovered_page_count
    message.clean_start_reason = use.clean_start
    message.instance = use.instance
    return message


def _succession_state(use: SuccessionUse) -> store_pb2.SuccessionStats.State:
    if use.failure:
        return store_pb2.SuccessionStats.STATE_GIVEN_UP
    if use.behind or use.refusal:
        return store_pb2.SuccessionStats.STATE_BEHIND
    return store_pb2.SuccessionStats.STATE_KEPT


def duration(seconds: float) -> Duration:
    """Returns a span of time as a message."""
    message = Duration()
    message.FromNanoseconds(round(seconds * 1e9))
    return message


def counters_message(counters: Counters) -> lease_pb2.CacheCounters:
    """Returns counters, whose names are the same on both sides."""
    return lease_pb2.CacheCounters(**vars(counters))


def lease_message(lease: LeaseStats) -> lease_pb2.LeaseInfo:
    """Returns one lease and what it holds."""
    state = lease_pb2.LeaseInfo.STATE_EXPIRED if lease.expired else lease_pb2.LeaseInfo.STATE_ACTIVE
    return lease_pb2.LeaseInfo(
        lease_id=lease.lease_id,
        display_name=lease.display_name,
        tenant=lease.tenant,
        state=state,
        age=duration(lease.age),
        since_renewal=duration(lease.since_renewal),
        processes=[_process_message(each) for each in lease.processes],
        pin_count=lease.pin_count,
        reservation_count=lease.reservation_count,
        in_flight_count=lease.in_flight_count,
        reserved_slot_count=lease.reserved_slot_count,
        quarantined_slot_count=lease.quarantined_slot_count,
        pinned_page_count=lease.pinned_page_count,
        detached_page_count=lease.detached_page_count,
        oldest_hold_age=_age(lease.oldest_hold_age),
        oldest_quarantine_age=_age(lease.oldest_quarantine_age),
        counters=counters_message(lease.counters),
    )


def hold_message(hold: HoldStats) -> lease_pb2.HoldInfo:
    """Returns one hold of a lease."""
    return lease_pb2.HoldInfo(
        kind=lease_pb2.HoldInfo.Kind.Name(hold.kind.value),
        hold_id=hold.hold_id,
        namespace_id=hold.namespace_id,
        page_count=hold.page_count,
        token_count=hold.token_count,
        detached_page_count=hold.detached_page_count,
        slot_count=hold.slot_count,
        announced_token_count=hold.announced_token_count,
        age=duration(hold.age),
    )


def namespace_message(namespace: NamespaceStats) -> store_pb2.NamespaceInfo:
    """Returns one namespace."""
    return store_pb2.NamespaceInfo(
        namespace_id=namespace.namespace_id,
        tenant=namespace.tenant,
        identity=identity_message(namespace.identity),
        layout=layout_message(namespace.layout),
        arena_id=namespace.arena_id,
        cached_page_count=namespace.cached_page_count,
        node_count=namespace.node_count,
        detached_page_count=namespace.detached_page_count,
        pin_count=namespace.pin_count,
        named_pin_count=namespace.named_pin_count,
        counters=counters_message(namespace.counters),
        age=duration(namespace.age),
    )


def named_pin_message(pin: NamedPinStats) -> named_pin_pb2.NamedPinInfo:
    """Returns one named pin."""
    return named_pin_pb2.NamedPinInfo(
        namespace_id=pin.namespace_id,
        name=pin.name,
        pinned_token_count=pin.pinned_token_count,
        age=duration(pin.age),
        remaining=None if pin.remaining is None else duration(pin.remaining),
        remote_token_count=pin.remote_token_count,
    )


def prefix_message(prefix: PrefixStats) -> store_pb2.PrefixInfo:
    """Returns one node of a namespace's tree."""
    return store_pb2.PrefixInfo(
        node_id=prefix.node_id,
        parent_node_id=prefix.parent_node_id,
        start_page=prefix.start_page,
        page_count=prefix.page_count,
        token_count=prefix.token_count,
        child_count=prefix.child_count,
        pin_count=prefix.pin_count,
        hit_count=prefix.hit_count,
        tokens=prefix.tokens,
    )


def stats_message(
    stats: Stats,
    *,
    uptime: float,
    requests: Callable[[str], Requests],
    tier_3: store_pb2.Tier3Stats,
    tier_bytes: Mapping[int, int],
    succession: store_pb2.SuccessionStats,
    remote: store_pb2.RemoteStats | None = None,
    kv_events: Iterable[KvEventUse] = (),
) -> store_pb2.GetStatsResponse:
    """Returns a snapshot; ``uptime`` is in seconds, ``requests`` are those of a tenant.

    Gives way to calls.

    ``tier_bytes`` is what each memory tier may take, as far as the caller may know.
    """
    return store_pb2.GetStatsResponse(
        store_epoch=stats.epoch,
        uptime=duration(uptime),
        counters=counters_message(stats.counters),
        arenas=[_arena_message(each) for each in stats.arenas],
        namespaces=[namespace_message(each) for each in background.gently(stats.namespaces, 1)],
        leases=[lease_message(each) for each in background.gently(stats.leases, 1)],
        pin_count=stats.pin_count,
        named_pin_count=stats.named_pin_count,
        reservation_count=stats.reservation_count,
        in_flight_count=stats.in_flight_count,
        expired_lease_count=stats.expired_lease_count,
        quarantined_slot_count=stats.quarantined_slot_count,
        detached_page_count=stats.detached_page_count,
        oldest_quarantine_age=_age(stats.oldest_quarantine_age),
        tenants=[
            tenant_message(each, requests(each.tenant))
            for each in background.gently(stats.tenants, 1)
        ],
        tier_3=tier_3,
        tier_budgets=[
            store_pb2.TierBudget(tier=types_pb2.Tier.Name(tier), size_bytes=size)
            for tier, size in tier_bytes.items()
        ],
        succession=succession,
        remote=remote,
        kv_events=[_kv_event_message(each) for each in kv_events],
    )


def _kv_event_message(use: KvEventUse) -> store_pb2.KvEventStats:
    return store_pb2.KvEventStats(
        tenant=use.tenant,
        endpoint=use.endpoint,
        replay_endpoint=use.replay_endpoint,
        last_batch_number=use.last_number,
        batch_count=use.batch_count,
        stored_copy_count=use.stored_block_count,
        removed_copy_count=use.removed_block_count,
        lost_change_count=use.lost_change_count,
        snapshot_count=use.snapshot_count,
        replay_count=use.replay_count,
    )


def quotas_message(quotas: Quotas) -> store_pb2.Quotas:
    """Returns what a tenant may have; the names are the same on both sides."""
    return store_pb2.Quotas(**asdict(quotas))


def tenant_message(tenant: TenantStats, requests: Requests) -> store_pb2.TenantStats:
    """Returns what a tenant has, and what it asked for."""
    return store_pb2.TenantStats(
        tenant=tenant.tenant,
        quotas=quotas_message(tenant.quotas),
        tier1_bytes=tenant.tier1_bytes,
        lease_count=tenant.lease_count,
        pin_count=tenant.pin_count,
        named_pin_count=tenant.named_pin_count,
        request_count=requests.request_count,
        refused_request_count=requests.refused_count,
    )


def limits_message(limits: Limits) -> store_pb2.Limits:
    """Returns the limits, as data."""
    return store_pb2.Limits(
        max_tokens=limits.max_tokens,
        max_batch_size=limits.max_batch_size,
        max_message_bytes=limits.max_message_bytes,
        min_ttl=duration(limits.min_ttl),
        max_ttl=duration(limits.max_ttl),
        max_deadline=duration(limits.max_deadline),
        max_namespaces=limits.max_namespaces,
        max_holds_per_lease=limits.max_holds_per_lease,
        max_processes_per_lease=limits.max_processes_per_lease,
        max_short_message_bytes=limits.max_short_message_bytes,
        max_page_bytes=limits.max_page_bytes,
        max_page_tokens=limits.max_page_tokens,
        max_name_bytes=limits.max_name_bytes,
        max_digest_bytes=limits.max_digest_bytes,
        max_salt_bytes=limits.max_salt_bytes,
        max_features=limits.max_features,
        max_tombstones=limits.max_tombstones,
        max_announced_bytes=limits.max_announced_bytes,
        max_watch=duration(limits.max_watch),
        max_watchers=limits.max_watchers,
        max_held_group_pages=limits.max_held_group_pages,
        max_prefetch_bytes=limits.max_prefetch_bytes,
    )


def _age(seconds: float | None) -> Duration | None:
    return None if seconds is None else duration(seconds)


def _process_message(process: ProcessStats) -> lease_pb2.ProcessInfo:
    return lease_pb2.ProcessInfo(
        pid=process.pid,
        uid=process.uid,
        connected=process.connected,
        mapped_extent_count=process.mapped_extent_count,
    )


def _arena_message(arena: ArenaStats) -> store_pb2.ArenaStats:
    return store_pb2.ArenaStats(
        arena_id=arena.arena_id,
        tenant=arena.tenant,
        tier=types_pb2.Tier.Name(arena.tier),
        slot_bytes=arena.slot_bytes,
        extent_count=arena.extent_count,
        retiring_extent_count=arena.retiring_extent_count,
        slot_count=arena.slot_count,
        free_slot_count=arena.slots[SlotState.FREE],
        reserved_slot_count=arena.slots[SlotState.RESERVED],
        cached_slot_count=arena.slots[SlotState.CACHED],
        detached_slot_count=arena.slots[SlotState.DETACHED],
        moving_slot_count=arena.slots[SlotState.MOVING],
        quarantined_slot_count=arena.slots[SlotState.QUARANTINED],
    )
