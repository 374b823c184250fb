"""Checks of kvstore-ctl doctor on one snapshot of a store's counters and gauges."""

from collections import Counter
from collections.abc import Iterable

from kvstore import __version__
from kvstore.v1 import lease_pb2, store_pb2
from kvstore_ctl.commands.namespace_identity import MEANINGS, factors_of, namesakes
from kvstore_ctl.doctor.findings import Finding, failed, ok, skipped, warning
from kvstore_ctl.store_tables import holder_line
from kvstore_ctl.terminal_text import counted
from kvstore_ctl.top.frame import THRASH_SHARE, span
from kvstore_ctl.top.rates import NANOSECONDS, counted_here, overall, uptime_of
from kvstore_ctl.typed_values import title_of

# Lookups, or inserted pages, below which a share means nothing.
FEW = 50
LOW_HIT_RATE = 0.1
# The share of lookups whose reserve found no slots.
MUCH_EXHAUSTED = 0.05
# Seconds. A longer hold was probably forgotten by its worker.
LONG_HOLD = 3_600.0
# A share of the namespaces that a tenant may have, and a large number of salts.
MANY_NAMESPACES = 0.8
MANY_SALTS = 1_000


def versions_check(capabilities: store_pb2.GetCapabilitiesResponse) -> Finding:
    """Checks whether client and server have the same version."""
    name, server = "versions", capabilities.server_version
    if server != __version__:
        advice = "install one version everywhere; a feature is used only if both have it"
        return warning(name, f"client {__version__}, server {server}", advice)
    return ok(name, f"client and server {server}")


def hit_rate_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether requests hit cached pages."""
    name, whole = "hit rate", overall(counted_here(stats), uptime_of(stats))
    if whole.hit_rate is None or whole.lookups < FEW:
        return ok(name, f"{counted(whole.lookups, 'lookup')}: too few to judge")
    found = f"{whole.hit_rate:.1%} of the tokens of {whole.lookups} lookups"
    if whole.hit_rate < LOW_HIT_RATE:
        advice = (
            "check whether prompts share a prefix (kvstore-ctl tree), whether servers share a"
            " namespace (kvstore-ctl identity), and whether pages are evicted too early (thrash,"
            " below)"
        )
        return warning(name, found, advice)
    return ok(name, found)


def thrash_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether pages are evicted and soon computed again."""
    name, whole = "thrash", overall(counted_here(stats), uptime_of(stats))
    if whole.thrash is None or whole.inserted_pages < FEW:
        return ok(name, f"{counted(whole.inserted_pages, 'page')} inserted: too few to judge")
    found = f"{whole.thrash:.1%} of {whole.inserted_pages} pages had been evicted shortly before"
    if whole.thrash >= THRASH_SHARE:
        return warning(name, found, "more memory (--tier1-bytes), or another tier (docs/tiers.md)")
    return ok(name, found)


def room_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether reservations find slots."""
    name, counters = "room", counted_here(stats)
    failures, lookups = counters.exhausted_count, counters.lookup_count
    found = f"{counted(failures, 'reserve')} of {counted(lookups, 'lookup')} found no slots"
    if lookups >= FEW and failures > lookups * MUCH_EXHAUSTED:
        advice = "more memory (--tier1-bytes), or see what is held: kvstore-ctl leases, pins"
        return warning(name, found, advice)
    return ok(name, found)


def quarantine_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether slots are in quarantine."""
    name, count = "quarantine", stats.quarantined_slot_count
    if not count:
        return ok(name, "no slots")
    found = f"{counted(count, 'slot')} for {span(stats.oldest_quarantine_age.seconds)}"
    return warning(name, found, f"they return when their processes do: {_ending(stats)}")


def expired_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether living workers have expired leases."""
    name = "expired leases"
    if not stats.expired_lease_count:
        return ok(name, "none")
    live = counted(stats.expired_lease_count, "worker lives but has", "workers live but have")
    found = f"{live} not renewed in time"
    return warning(name, found, f"they are stopped, hung or cut off: {_ending(stats)}")


def long_holds_check(stats: store_pb2.GetStatsResponse, long_hold: float = LONG_HOLD) -> Finding:
    """Checks whether a worker has holds that are older than any request."""
    name = "long holds"
    old = [each for each in stats.leases if _age(each) > long_hold]
    if not old:
        return ok(name, f"no pin or reservation is older than {span(long_hold)}")
    names = ", ".join(f"{_lease(each)} for {span(_age(each))}" for each in old)
    advice = "see each hold with kvstore-ctl leases LEASE; restart an engine that leaks holds"
    return warning(name, f"held by {names}", advice)


def tier_3_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether tier 3 works."""
    name, tier_3 = "tier 3", stats.tier_3
    if tier_3.state == store_pb2.Tier3Stats.STATE_FAILED:
        advice = (
            "see the server's log (tier3_unusable, slab_failed, tier3_removal_failed), the disk and"
            " its room; then restart the server"
        )
        return failed(name, "it failed: its pages are misses", advice)
    if bad := tier_3.corrupt_page_count + tier_3.unreadable_page_count:
        found = f"{counted(bad, 'page was', 'pages were')} not what was written"
        return warning(name, found, "see to the disk: dmesg, smartctl")
    state = store_pb2.Tier3Stats.State.Name(tier_3.state).removeprefix("STATE_").lower()
    return ok(name, state)


def holder_check(
    succession: store_pb2.SuccessionStats, *, on_device: bool, has_tier_2: bool
) -> Finding:
    """Checks whether the pages outlive the server, so that the next one goes on with them.

    Memory of a GPU ends with the server's process, so that of tier 1 cannot.
    """
    name, states = "holder", store_pb2.SuccessionStats
    if succession.state == states.STATE_UNSPECIFIED:
        return skipped(name, "the server does not say whether its pages outlive it: it is older")
    if on_device and not has_tier_2:
        return _without_tier_2(succession)
    reason = f" ({succession.failure_reason})" if succession.failure_reason else ""
    if succession.state == states.STATE_OFF:
        found = "none: if the server ends or restarts, all its pages are lost and computed again"
        return warning(name, found, "run kvstore-holder beside the server, and set --holder")
    if succession.state == states.STATE_GIVEN_UP:
        found = f"the server has no journal any more{reason}: the next one begins empty"
        advice = "set a larger --journal-bytes, and restart the server when its pages may be lost"
        return failed(name, found, advice)
    if succession.state == states.STATE_BEHIND:
        lacks = counted(succession.behind_count, "descriptor")
        found = f"it is lost, or lacks {lacks}{reason}: if the server ends now, its pages are lost"
        advice = (
            "the server repeats its deposits by itself: see that kvstore-holder runs in"
            f" {succession.holder or 'the folder of --holder'}, and has memory and open files left"
        )
        return warning(name, found, advice)
    parts = [holder_line(succession)]
    if on_device:
        parts.append("only tier 2 stays: tier 1 is a GPU's memory, which ends with the server")
    return ok(name, "; ".join(parts))


def kv_events_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether routers can follow the store's pages by KV events."""
    name = "kv events"
    if not stats.kv_events:
        return skipped(name, "none are published: --kv-events, or no tenant has pages yet")
    lost = sum(each.lost_change_count for each in stats.kv_events)
    if lost:
        found = f"{counted(lost, 'change')} came faster than they were published"
        advice = "snapshots repaired that; give the server more processor time"
        return warning(name, found, advice)
    parts = [f"{each.tenant} at {each.endpoint}" for each in stats.kv_events]
    return ok(name, ", ".join(parts))


def _without_tier_2(succession: store_pb2.SuccessionStats) -> Finding:
    """Returns the finding for a store whose only memory tier is a GPU's."""
    found = "tier 1 is a GPU's memory, which ends with the server, and there is no tier 2"
    if succession.state == store_pb2.SuccessionStats.STATE_OFF:
        return ok("holder", found)
    advice = "add --tier2-bytes, whose pages stay, or set --holder off"
    return warning("holder", found, advice)


def corruption_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether pages in memory were overwritten."""
    name, counters = "corruption", stats.counters
    seen = f"{counted(counters.verified_page_count, 'verified page')}"
    if counters.corrupt_page_count:
        found = f"{counters.corrupt_page_count} of {seen}"
        advice = (
            "a worker writes where it must not: the log's page_corrupt lines name namespace and"
            " slot; --verify-rate 1 verifies every page"
        )
        return failed(name, found, advice)
    return ok(name, f"none of {seen}")


def refusals_check(stats: store_pb2.GetStatsResponse) -> Finding:
    """Checks whether tenants make more requests than their quota allows."""
    name = "refused requests"
    refused = [each for each in stats.tenants if each.refused_request_count]
    if not refused:
        return ok(name, "none")
    found = ", ".join(f"{each.tenant}: {each.refused_request_count}" for each in refused)
    return warning(name, found, "raise requests_per_second in the tenants file, or slow the caller")


def namespaces_check(
    namespaces: Iterable[store_pb2.NamespaceInfo], limit: int, many_salts: int = MANY_SALTS
) -> Finding:
    """Checks whether a tenant nears its limit of namespaces, for example by many salts."""
    name, listed = "namespaces", list(namespaces)
    advice = (
        "salt by tenant or application and not by request (cache_salt), and remove unused"
        " namespaces: kvstore-ctl namespaces delete"
    )
    for tenant, count in Counter(each.tenant for each in listed).items():
        if count >= limit * MANY_NAMESPACES:
            return failed(name, f"{tenant} has {count} of {limit}", advice)
    kinds = Counter(tuple(factors_of(each).values()) for each in listed)
    most = max(kinds.values(), default=0)
    if most >= many_salts:
        return warning(name, f"{most} differ only by their salts", advice)
    return ok(name, f"{len(listed)}, and a tenant may have {limit}")


def identities_check(namespaces: Iterable[store_pb2.NamespaceInfo]) -> Finding:
    """Checks for namespaces of one name that share no pages."""
    name = "identities"
    pairs = namesakes(list(namespaces))
    if not pairs:
        return ok(name, "all namespaces of one name have the same identity")
    one, other, factors = pairs[0]
    found = f"{title_of(one)} and {title_of(other)} share no page: they differ in " + ", ".join(
        factors
    )
    if len(pairs) > 1:
        found += f"; and {len(pairs) - 1} more pairs (kvstore-ctl identity)"
    return warning(name, found, "; ".join(f"{each}: {MEANINGS[each]}" for each in factors))


def _ending(stats: store_pb2.GetStatsResponse) -> str:
    late = [each for each in stats.leases if each.state == lease_pb2.LeaseInfo.STATE_EXPIRED]
    names = ", ".join(_lease(each) for each in late) or "kvstore-ctl leases"
    return f"continue, or end, {names}"


def _lease(lease: lease_pb2.LeaseInfo) -> str:
    pids = ", ".join(str(each.pid) for each in lease.processes)
    return f"{lease.display_name or lease.lease_id.hex()[:8]} (pid {pids})"


def _age(lease: lease_pb2.LeaseInfo) -> float:
    return lease.oldest_hold_age.seconds + lease.oldest_hold_age.nanos * NANOSECONDS


SNAPSHOT_CHECKS = (
    hit_rate_check,
    thrash_check,
    room_check,
    quarantine_check,
    expired_check,
    long_holds_check,
    tier_3_check,
    corruption_check,
    refusals_check,
)
