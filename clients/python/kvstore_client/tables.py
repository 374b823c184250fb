"""What an operator sees of a store: tables."""

from collections.abc import Iterable, Mapping, Sequence

from rich.table import Table

from kvstore.v1 import lease_pb2, named_pin_pb2, store_pb2
from kvstore_client.fitted_table import FittedTable
from kvstore_client.tier_tables import MEBIBYTE, memory_rows

SHORT_ID = 8


def totals_table(stats: store_pb2.GetStatsResponse) -> Table:
    """Return what was asked of the store and what it gave."""
    counters = stats.counters
    quarantined, since = stats.quarantined_slot_count, _seconds(stats, "oldest_quarantine_age")
    rows: Mapping[str, object] = {
        "store epoch": stats.store_epoch,
        "uptime, s": stats.uptime.seconds,
        "lookups (full, partial, miss)": f"{counters.lookup_count} ({counters.full_hit_count}, "
        f"{counters.partial_hit_count}, {counters.miss_count})",
        "tokens matched + copied of asked": f"{counters.matched_token_count} + "
        f"{counters.copied_token_count} of {counters.asked_token_count} {_share(counters)}",
        "next tokens answered": counters.next_token_count,
        "pages inserted (duplicates)": f"{counters.inserted_page_count} "
        f"({counters.duplicate_page_count})",
        "pages evicted, removed, superseded": f"{counters.evicted_page_count}, "
        f"{counters.removed_page_count}, {counters.superseded_page_count}",
        "pages returned soon after": counters.returned_page_count,
        "pages verified (corrupt)": f"{counters.verified_page_count} "
        f"({counters.corrupt_page_count})",
        "pages demoted, promoted": f"{counters.demoted_page_count}, {counters.promoted_page_count}",
        "pages loaded from tier 3": counters.loaded_page_count,
        "reserves without slots": counters.exhausted_count,
        "pins, reservations (in flight)": f"{stats.pin_count}, {stats.reservation_count} "
        f"({stats.in_flight_count})",
        "acquires that yielded": counters.yielded_count,
        "named pins": stats.named_pin_count,
        "leases (expired)": f"{len(stats.leases)} ({stats.expired_lease_count})",
        "slots in quarantine (since, s)": f"{quarantined} ({since})" if since else quarantined,
        "detached pages": stats.detached_page_count,
    }
    table = Table("store", "", title_justify="left")
    for name, value in {**rows, **memory_rows(stats)}.items():
        table.add_row(name, str(value))
    return table


def arenas_table(arenas: Iterable[store_pb2.ArenaStats], *, wide: bool = False) -> FittedTable:
    """Return the slots of each arena by state; of all columns and whole ids where ``wide``."""
    return FittedTable(
        "arenas",
        (
            *("arena", "tenant", "tier", "MiB", "extents", "retiring", "slots", "free"),
            *("reserved", "cached", "detached", "moving", "quarantined"),
        ),
        (
            (
                arena.arena_id,
                arena.tenant,
                arena.tier,
                arena.slot_count * arena.slot_bytes // MEBIBYTE,
                arena.extent_count,
                arena.retiring_extent_count,
                arena.slot_count,
                arena.free_slot_count,
                arena.reserved_slot_count,
                arena.cached_slot_count,
                arena.detached_slot_count,
                arena.moving_slot_count,
                arena.quarantined_slot_count,
            )
            for arena in arenas
        ),
        first=("arena", "tier", "slots", "free", "reserved", "cached", "quarantined"),
        wide=wide,
    )


def tenants_table(tenants: Iterable[store_pb2.TenantStats], *, wide: bool = False) -> FittedTable:
    """Return what each tenant has, of what it may have, and how often it was refused."""
    return FittedTable(
        "tenants",
        ("tenant", "MiB", "leases", "holds", "named pins", "requests", "refused", "per second"),
        (
            (
                each.tenant,
                _of(
                    each.tier1_bytes // MEBIBYTE,
                    each.quotas.tier1_bytes // MEBIBYTE
                    if each.quotas.HasField("tier1_bytes")
                    else None,
                ),
                _of(each.lease_count, each.quotas.leases),
                _of(each.pin_count, each.quotas.pins),
                _of(each.named_pin_count, each.quotas.named_pins),
                each.request_count,
                each.refused_request_count,
                f"{each.quotas.requests_per_second:g}"
                if each.quotas.HasField("requests_per_second")
                else "",
            )
            for each in tenants
        ),
        first=("tenant", "MiB", "leases", "holds", "requests", "refused"),
        wide=wide,
    )


def namespaces_table(
    namespaces: Iterable[store_pb2.NamespaceInfo], *, wide: bool = False
) -> FittedTable:
    """Return what each namespace holds; all columns and whole ids where ``wide``."""
    return FittedTable(
        "namespaces",
        (
            *("namespace", "name", "tenant", "arena", "page tokens", "pages", "nodes"),
            *("detached", "pins", "named pins", "lookups", "matched"),
        ),
        (
            (
                _id(each.namespace_id, wide=wide),
                each.identity.display_name,
                each.tenant,
                each.arena_id,
                each.layout.page_tokens,
                each.cached_page_count,
                each.node_count,
                each.detached_page_count,
                each.pin_count,
                each.named_pin_count,
                each.counters.lookup_count,
                _share(each.counters),
            )
            for each in namespaces
        ),
        first=("namespace", "name", "pages", "pins", "lookups", "matched"),
        wide=wide,
    )


def leases_table(leases: Iterable[lease_pb2.LeaseInfo], *, wide: bool = False) -> FittedTable:
    """Return what each lease holds; all columns and whole ids where ``wide``."""
    return FittedTable(
        "leases",
        (
            *("lease", "name", "state", "pids", "pins", "pinned pages", "reserved"),
            *("quarantined", "oldest hold, s", "in quarantine, s", "age, s", "renewed, s ago"),
            *("detached", "reservations", "in flight", "tenant", "uids"),
        ),
        (
            (
                _id(each.lease_id, wide=wide),
                each.display_name,
                lease_pb2.LeaseInfo.State.Name(each.state).removeprefix("STATE_").lower(),
                ", ".join(str(process.pid) for process in each.processes),
                each.pin_count,
                each.pinned_page_count,
                each.reserved_slot_count,
                each.quarantined_slot_count,
                _seconds(each, "oldest_hold_age"),
                _seconds(each, "oldest_quarantine_age"),
                each.age.seconds,
                each.since_renewal.seconds,
                each.detached_page_count,
                each.reservation_count,
                each.in_flight_count,
                each.tenant,
                ", ".join(map(str, sorted({process.uid for process in each.processes}))),
            )
            for each in leases
        ),
        first=("lease", "name", "state", "pids", "pins", "pinned pages", "reserved"),
        wide=wide,
    )


def holds_table(
    holds: Iterable[lease_pb2.HoldInfo],
    namespace_titles: Mapping[bytes, str],
    *,
    title: str = "holds",
    wide: bool = False,
) -> FittedTable:
    """Return each hold of a lease; a namespace without a title is shown by its id."""
    return FittedTable(
        title,
        ("kind", "id", "namespace", "pages", "tokens", "detached", "slots", "announced", "age, s"),
        (
            (
                lease_pb2.HoldInfo.Kind.Name(hold.kind).removeprefix("KIND_").lower(),
                hold.hold_id,
                namespace_titles.get(hold.namespace_id, hold.namespace_id.hex()[:SHORT_ID]),
                hold.page_count,
                hold.token_count,
                hold.detached_page_count,
                hold.slot_count,
                hold.announced_token_count or "",
                hold.age.seconds,
            )
            for hold in holds
        ),
        first=("kind", "namespace", "pages", "tokens", "slots", "age, s"),
        wide=wide,
    )


def named_pins_table(
    pins: Iterable[named_pin_pb2.NamedPinInfo], namespace_titles: Mapping[bytes, str]
) -> FittedTable:
    """Return what each named pin holds; a namespace without a title is shown by its id."""
    return FittedTable(
        "named pins",
        ("name", "namespace", "tokens", "age, s", "left"),
        (
            (
                pin.name,
                namespace_titles.get(pin.namespace_id, pin.namespace_id.hex()[:SHORT_ID]),
                pin.pinned_token_count,
                pin.age.seconds,
                span_text(pin.remaining.seconds) if pin.HasField("remaining") else "for ever",
            )
            for pin in pins
        ),
    )


def span_text(seconds: int) -> str:
    """Return a time for people, in one or two units: 42 s, 5 min 7 s, 12 h, 6 d 23 h."""
    units = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))
    unit, size = next((each for each in units if seconds >= each[1]), units[-1])
    if size == 1:
        return f"{seconds} {unit}"
    smaller, part = units[units.index((unit, size)) + 1]
    rest = seconds % size // part
    return f"{seconds // size} {unit}" + (f" {rest} {smaller}" if rest else "")


def plain_table(
    title: str,
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    first: Sequence[str] = (),
    wide: bool = False,
) -> FittedTable:
    """Return a table of whatever rows there are."""
    return FittedTable(title, columns, rows, first=first, wide=wide)


def _id(identifier: bytes, *, wide: bool) -> str:
    return identifier.hex() if wide else identifier.hex()[:SHORT_ID]


def _seconds(message: store_pb2.GetStatsResponse | lease_pb2.LeaseInfo, span: str) -> str:
    """Return a span of time in whole seconds; nothing where it is absent."""
    return str(getattr(message, span).seconds) if message.HasField(span) else ""


def _of(count: int, most: int | None) -> str:
    return str(count) if most is None else f"{count} of {most}"


def _share(counters: lease_pb2.CacheCounters) -> str:
    """Return which part of the tokens asked for needs not be computed."""
    if not counters.asked_token_count:
        return ""
    reused = counters.matched_token_count + counters.copied_token_count
    return f"{reused / counters.asked_token_count:.1%}"
