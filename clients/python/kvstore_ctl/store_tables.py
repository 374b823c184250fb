"""The tables that kvstore-ctl prints."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from kvstore.v1 import lease_pb2, named_pin_pb2, store_pb2
from kvstore_ctl.terminal_text import counted, printable

# The characters of a column's edge and of the space on both sides.
BESIDE = 3


class FittedTable:
    """Rows under named columns, fitted to the width of the terminal.

    If not all columns fit, those of ``first`` stay, and as many of the others as fit. A line then
    names the columns that are missing. Each row is a record with one line a column if not even
    ``first`` fits, with ``wide``, or without ``first``.
    """

    def __init__(
        self,
        title: str,
        columns: Sequence[str],
        rows: Iterable[Sequence[object]],
        *,
        first: Sequence[str] = (),
        wide: bool = False,
    ) -> None:
        """``rows`` have a value for each column. Control characters in a value are escaped."""
        self._title = title
        self._columns = columns
        # Names come from other programs, so they may have markup and control characters.
        self._rows = [[printable(str(value)) for value in row] for row in rows]
        self._first = () if wide else first

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Yields the table, fitted to the width of ``options``."""
        room = options.max_width
        everything = list(range(len(self._columns)))
        if self._least(everything) <= room:
            yield self._table(everything, room)
            return
        kept = [number for number in everything if self._columns[number] in self._first]
        if not kept or self._least(kept) > room:
            yield from self._records()
            return
        for number in everything:
            if number not in kept and self._least([*kept, number]) <= room:
                kept.append(number)
        yield self._table(sorted(kept), room)
        out = "; ".join(self._columns[number] for number in everything if number not in kept)
        yield Text(f"--wide shows also: {out}", style="dim")

    def _least(self, numbers: Sequence[int]) -> int:
        return sum(self._width_of(each, words=True) + BESIDE for each in numbers) + 1

    def _width_of(self, number: int, *, words: bool) -> int:
        """Returns the width of a column's longest value or title, or of their longest word."""
        texts = [self._columns[number], *(row[number] for row in self._rows)]
        parts = [word for text in texts for word in text.split()] if words else texts
        return max(map(cell_len, parts), default=0)

    def _table(self, numbers: Sequence[int], room: int) -> Table:
        table = Table(title=self._title, title_justify="left")
        spare = room - self._least(numbers)
        for each in numbers:
            least = self._width_of(each, words=True)
            more = min(self._width_of(each, words=False) - least, spare)
            spare -= more
            table.add_column(self._columns[each], width=least + more, overflow="fold")
        for row in self._rows:
            table.add_row(*(Text(row[each]) for each in numbers))
        return table

    def _records(self) -> RenderResult:
        yield Text(self._title, style="italic")
        for row in self._rows:
            record = Table(box=None, show_header=False, pad_edge=False)
            record.add_column(no_wrap=True, style="dim")
            record.add_column(overflow="fold")
            for column, value in zip(self._columns, row, strict=True):
                record.add_row(Text(column), Text(value))
            yield record
            yield Text()


SHORT_ID = 8


def totals_table(stats: store_pb2.GetStatsResponse) -> Table:
    """Returns a table of the store's counters and gauges."""
    counters = stats.counters
    quarantined, since = stats.quarantined_slot_count, _seconds(stats, "oldest_quarantine_age")
    rows: Mapping[str, object] = {
        "store epoch": stats.store_epoch,
        "uptime, s": stats.uptime.seconds,
        "lookups (full, partial, miss)": f"{counters.lookup_count} ({counters.full_hit_count}, "
        f"{counters.partial_hit_count}, {counters.miss_count})",
        "tokens matched + copied, of asked": f"{counters.matched_token_count} + "
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
    if line := holder_line(stats.succession):
        table.add_row("holder", printable(line))
    return table


def arenas_table(arenas: Iterable[store_pb2.ArenaStats], *, wide: bool = False) -> FittedTable:
    """Returns a table of each arena's slots by state; all columns and whole ids if ``wide``."""
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
    """Returns a table of each tenant's usage and quotas, and of its refused requests."""
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
    """Returns a table of the namespaces; with all columns and whole ids if ``wide``."""
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
    """Returns a table of the leases; with all columns and whole ids if ``wide``."""
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
    """Returns a table of a lease's holds. A namespace without a title is shown by its id."""
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
    pins: Iterable[named_pin_pb2.NamedPinInfo],
    namespace_titles: Mapping[bytes, str],
    *,
    has_remote_tier: bool = False,
) -> FittedTable:
    """Returns a table of the named pins. A namespace without a title is shown by its id.

    With a remote tier it says how many tokens of each are in it.
    """
    shared = ("shared",) if has_remote_tier else ()
    return FittedTable(
        "named pins",
        ("name", "namespace", "tokens", *shared, "age, s", "left"),
        (
            (
                pin.name,
                namespace_titles.get(pin.namespace_id, pin.namespace_id.hex()[:SHORT_ID]),
                pin.pinned_token_count,
                *((pin.remote_token_count,) if has_remote_tier else ()),
                pin.age.seconds,
                span_text(pin.remaining.seconds) if pin.HasField("remaining") else "for ever",
            )
            for pin in pins
        ),
    )


def span_text(seconds: int) -> str:
    """Returns a time in one or two units: 42 s, 5 min 7 s, 12 h, 6 d 23 h."""
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
    """Returns a table of any rows."""
    return FittedTable(title, columns, rows, first=first, wide=wide)


def _id(identifier: bytes, *, wide: bool) -> str:
    return identifier.hex() if wide else identifier.hex()[:SHORT_ID]


def _seconds(message: store_pb2.GetStatsResponse | lease_pb2.LeaseInfo, span: str) -> str:
    """Returns a span of time in whole seconds; empty if it is absent."""
    return str(getattr(message, span).seconds) if message.HasField(span) else ""


def _of(count: int, most: int | None) -> str:
    return str(count) if most is None else f"{count} of {most}"


def _share(counters: lease_pb2.CacheCounters) -> str:
    """Returns the share of the asked tokens that need not be computed."""
    if not counters.asked_token_count:
        return ""
    reused = counters.matched_token_count + counters.copied_token_count
    return f"{reused / counters.asked_token_count:.1%}"


MEBIBYTE = 1 << 20


def memory_rows(stats: store_pb2.GetStatsResponse) -> dict[str, str]:
    """Returns the arenas' part of each tier's budget, if the caller may see the budgets."""
    taken = Counter[int]()
    for arena in stats.arenas:
        taken[arena.tier] += arena.slot_count * arena.slot_bytes
    return {
        f"tier {each.tier}, MiB of its budget": f"{taken[each.tier] // MEBIBYTE} of "
        f"{each.size_bytes // MEBIBYTE}"
        for each in stats.tier_budgets
    }


HOLDER_STATES = {
    store_pb2.SuccessionStats.STATE_OFF: "none: the pages end with the server",
    store_pb2.SuccessionStats.STATE_KEPT: "has everything",
    store_pb2.SuccessionStats.STATE_BEHIND: "BEHIND: a kill now loses the pages",
    store_pb2.SuccessionStats.STATE_GIVEN_UP: "NO JOURNAL: the next server begins empty",
}


def holder_line(succession: store_pb2.SuccessionStats) -> str:
    """Returns a line that says whether the memory outlives the server.

    It is empty if the server is older. Callers other than admins see only the state.
    """
    said = HOLDER_STATES.get(succession.state, "")
    if not succession.holder:
        return said
    parts = [said]
    if succession.behind_count:
        parts.append(f"{counted(succession.behind_count, 'descriptor')} behind")
    if succession.journal_size_bytes:
        used, size = succession.journal_used_bytes, succession.journal_size_bytes
        parts.append(f"journal {used / MEBIBYTE:.1f} of {size / MEBIBYTE:.1f} MiB")
    recovered = counted(succession.recovered_page_count, "page")
    clean = f"a clean start ({succession.clean_start_reason})"
    parts.append(clean if succession.clean_start_reason else f"{recovered} recovered")
    return "; ".join(parts)


def tier_3_table(tier_3: store_pb2.Tier3Stats) -> Table:
    """Returns a table of tier 3. Callers other than admins see only its state."""
    state = store_pb2.Tier3Stats.State.Name(tier_3.state).removeprefix("STATE_").lower()
    table = Table("tier 3", state, title_justify="left")
    if not tier_3.size_bytes:
        return table
    rows: Mapping[str, object] = {
        "MiB": tier_3.size_bytes // MEBIBYTE,
        "pages of slots so far": f"{tier_3.page_count} of {tier_3.slot_count}",
        "pages written (refused)": f"{tier_3.written_page_count} ({tier_3.refused_page_count})",
        "pages read (corrupt, unreadable)": f"{tier_3.read_page_count} "
        f"({tier_3.corrupt_page_count}, {tier_3.unreadable_page_count})",
        "pages evicted, removed": f"{tier_3.evicted_page_count}, {tier_3.removed_page_count}",
        "loads, MiB a second (declined)": f"{tier_3.bytes_per_second / MEBIBYTE:.0f} "
        f"({tier_3.declined_load_count})",
        "pages at the start (torn)": f"{tier_3.recovered_page_count} ({tier_3.torn_slot_count})",
    }
    for name, value in rows.items():
        table.add_row(name, str(value))
    return table
