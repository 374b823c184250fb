"""One frame of kvstore-ctl top, as lines and tables, and as plain values."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvstore.v1 import lease_pb2, store_pb2, types_pb2
from kvstore_ctl.remote_tables import is_alarm, remote_line
from kvstore_ctl.store_tables import SHORT_ID, holder_line
from kvstore_ctl.terminal_text import counted, printable
from kvstore_ctl.top.rates import Activity, Change, counted_here, overall, uptime_of

WIDTH = 32
MEBIBYTE = 1 << 20


class BarPart(NamedTuple):
    """A part of a bar: its name, its character and its colour."""

    name: str
    character: str
    style: str


PARTS = (
    BarPart("cached", "#", "green"),
    BarPart("reserved", "=", "yellow"),
    BarPart("detached", "~", "cyan"),
    BarPart("moving", ">", "magenta"),
    BarPart("quarantined", "!", "bold red"),
    BarPart("free", ".", "dim"),
)
LEGEND = " ".join(f"{part.character}{part.name}" for part in PARTS)


def cells_of(counts: Sequence[int], width: int) -> list[int]:
    """Returns how many of ``width`` characters each count gets.

    The sum is ``width``, or zero if all counts are zero. Each other count gets at least one
    character, taken from the largest counts.
    """
    total = sum(counts)
    if not total:
        return [0] * len(counts)
    cells = [max(1, count * width // total) if count else 0 for count in counts]
    while (over := sum(cells) - width) != 0:
        most = max(range(len(cells)), key=lambda n: (cells[n], counts[n]))
        cells[most] -= 1 if over > 0 else over
    return cells


def bar(counts: Sequence[int], width: int = WIDTH) -> Text:
    """Returns a bar of the counts of :data:`PARTS`, in their order."""
    drawn = Text("[")
    for part, cells in zip(PARTS, cells_of(counts, width), strict=True):
        drawn.append(part.character * cells, style=part.style)
    return drawn.append("]")


def tier_bars(stats: store_pb2.GetStatsResponse) -> list[Text]:
    """Returns a line for each memory tier that has arenas, and one for an open tier 3."""
    lines = []
    for tier in (types_pb2.TIER_1, types_pb2.TIER_2):
        arenas = [each for each in stats.arenas if each.tier == tier]
        if not arenas:
            continue
        counts = [
            sum(getattr(each, f"{part.name}_slot_count") for each in arenas) for part in PARTS
        ]
        slots = sum(each.slot_count for each in arenas)
        size = sum(each.slot_count * each.slot_bytes for each in arenas)
        used = slots - counts[-1]
        line = Text(f"tier {tier}  ").append(bar(counts))
        room = f"  {share(used, slots)} of {counted(slots, 'slot')}"
        lines.append(line.append(f"{room}, {mebibytes(size)}"))
    tier_3 = stats.tier_3
    if tier_3.state == store_pb2.Tier3Stats.STATE_OPEN and tier_3.slot_count:
        pages, slots = tier_3.page_count, tier_3.slot_count
        counts = [pages, 0, 0, 0, 0, max(slots - pages, 0)]
        line = Text("tier 3  ").append(bar(counts))
        room = f"  {share(pages, slots)} of {counted(slots, 'slot')} so far"
        lines.append(line.append(f"{room}, {mebibytes(tier_3.size_bytes)}"))
    elif tier_3.state == store_pb2.Tier3Stats.STATE_FAILED:
        lines.append(Text("tier 3  FAILED: kvstore-ctl doctor says what to do", style="bold red"))
    return lines


def _remote(stats: store_pb2.GetStatsResponse) -> list[Text]:
    """Returns the line of the remote tier, if there is one."""
    if not stats.HasField("remote"):
        return []
    style = "bold red" if is_alarm(stats.remote) else ""
    line = f"remote  {printable(remote_line(stats.remote))}"
    return [Text(line, style=style, no_wrap=True, overflow="ellipsis")]


def _holder(succession: store_pb2.SuccessionStats) -> list[Text]:
    """Returns the line that says whether the memory outlives the server, if the server says so."""
    line = printable(holder_line(succession))
    alarm = succession.state in (
        store_pb2.SuccessionStats.STATE_BEHIND,
        store_pb2.SuccessionStats.STATE_GIVEN_UP,
    )
    style = "bold red" if alarm else ""
    shown = Text(f"holder  {line}", style=style, no_wrap=True, overflow="ellipsis")
    return [shown] if line else []


def share(part: int, whole: int) -> str:
    """Returns a part of a whole in percent; 0% if the whole is zero."""
    return f"{part / whole:.0%}" if whole else "0%"


def mebibytes(size: int) -> str:
    """Returns bytes in MiB, with one decimal below 10 MiB."""
    return f"{size / MEBIBYTE:.1f} MiB" if size < 10 * MEBIBYTE else f"{size // MEBIBYTE} MiB"


# The keys to sort rows by; the first is the default. A row without a hit rate comes last.
SORTS: dict[str, Callable[[Activity], float]] = {
    "tokens": lambda each: each.asked_tokens,
    "lookups": lambda each: each.lookups,
    "saved": lambda each: each.saved_tokens,
    "hits": lambda each: -1.0 if each.hit_rate is None else each.hit_rate,
    "evictions": lambda each: each.evicted_pages,
}
# A share of the inserted pages, as in the server's log.
THRASH_SHARE = 0.2
KEYS = "q quits, s sorts by the next column, Ctrl-C ends"


class Screen(NamedTuple):
    """The content of one display: a snapshot, and the activity since the one before."""

    stats: store_pb2.GetStatsResponse
    change: Change
    sort: str
    rows: int

    @property
    def overall(self) -> Activity:
        """The activity of the existing namespaces since the store's start."""
        return overall(counted_here(self.stats), uptime_of(self.stats))

    @property
    def namespaces(self) -> list[tuple[store_pb2.NamespaceInfo, Activity]]:
        """The shown namespaces, the most active first."""
        pairs = [
            (each, self.change.namespaces[each.namespace_id]) for each in self.stats.namespaces
        ]
        return sorted(
            pairs,
            key=lambda pair: (SORTS[self.sort](pair[1]), pair[0].cached_page_count),
            reverse=True,
        )[: self.rows]

    @property
    def leases(self) -> list[tuple[lease_pb2.LeaseInfo, Activity]]:
        """The shown leases, the most active first."""
        pairs = [
            (each, self.change.leases[each.tenant, each.lease_id]) for each in self.stats.leases
        ]
        return sorted(
            pairs,
            key=lambda pair: (SORTS[self.sort](pair[1]), pair[0].pinned_page_count),
            reverse=True,
        )[: self.rows]


def rendered(
    frame: Screen, *, width: int | None = None, trouble: str = "", keys: bool = False
) -> RenderableType:
    """Returns a frame for a file, or for a terminal of ``width`` columns.

    ``keys`` adds a line with the keys. ``trouble`` is the reason why the frame is not current.
    """
    now, all_of_it, stats = frame.change.whole, frame.overall, frame.stats
    thrash = Text(f"thrash {_share(now.thrash)}")
    if now.thrash is not None and now.thrash >= THRASH_SHARE:
        thrash.stylize("bold red")
    lines: list[RenderableType] = [
        Text(
            f"up {span(uptime_of(stats))}, last {now.seconds:.1f} s by the store's clock,"
            f" sorted by {frame.sort}"
        ),
        Text(
            f"hit rate now {_share(now.hit_rate)}, overall {_share(all_of_it.hit_rate)};"
            f" lookups a second {now.per_second(now.lookups):.1f}"
        ),
        Text(
            f"tokens saved a second now {now.per_second(now.saved_tokens):.0f},"
            f" overall {all_of_it.per_second(all_of_it.saved_tokens):.0f}"
        ),
        Text(
            f"pages a second: inserted {now.per_second(now.inserted_pages):.1f},"
            f" evicted {now.per_second(now.evicted_pages):.1f}; "
        ).append(thrash),
        *tier_bars(stats),
        *_remote(stats),
        *_holder(stats.succession),
        Text(f"        {LEGEND}", style="dim"),
        _namespaces(frame, width),
        _leases(frame, width),
    ]
    if trouble:
        lines[0] = Text(printable(trouble), style="bold red")
    if keys:
        lines.append(Text(KEYS, style="dim"))
    return Group(*lines)


def plain_frame(frame: Screen) -> dict[str, object]:
    """Returns a frame's numbers for JSON: rates a second, and shares from 0 to 1."""
    return {
        "uptime": uptime_of(frame.stats),
        "store_epoch": frame.stats.store_epoch,
        "now": _plain(frame.change.whole),
        "overall": _plain(frame.overall),
        "arenas": [
            {
                "arena_id": each.arena_id,
                "tier": each.tier,
                "slot_count": each.slot_count,
                "free_slot_count": each.free_slot_count,
            }
            for each in frame.stats.arenas
        ],
        "namespaces": [
            {"namespace_id": info.namespace_id.hex(), "name": info.identity.display_name}
            | {"tenant": info.tenant, "cached_page_count": info.cached_page_count}
            | _plain(activity)
            for info, activity in frame.namespaces
        ],
        "leases": [
            {"lease_id": info.lease_id.hex(), "name": info.display_name, "tenant": info.tenant}
            | _plain(activity)
            for info, activity in frame.leases
        ],
    }


def span(seconds: float) -> str:
    """Returns a time for people: 42s, 5m07s, 3h05m, 2d04h."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d{hours:02}h"
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _namespaces(frame: Screen, width: int | None) -> Table:
    rows = [
        (
            info.namespace_id.hex()[:SHORT_ID],
            info.identity.display_name,
            info.tenant,
            info.cached_page_count,
            info.pin_count + info.named_pin_count,
            activity,
        )
        for info, activity in frame.namespaces
    ]
    return _table("namespace", "pages", "pins", rows, width)


def _leases(frame: Screen, width: int | None) -> Table:
    rows = [
        (
            info.lease_id.hex()[:SHORT_ID],
            info.display_name + EXPIRED * (info.state == lease_pb2.LeaseInfo.STATE_EXPIRED),
            info.tenant,
            info.pinned_page_count,
            info.reserved_slot_count + info.quarantined_slot_count,
            activity,
        )
        for info, activity in frame.leases
    ]
    return _table("lease", "pinned", "slots", rows, width)


def compact(value: float) -> str:
    """Returns a number in six characters at most: 7.5, 1234, 56.7k, 8.9M."""
    for unit, size, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if value >= least:
            return f"{value / size:.1f}{unit}"
    return f"{value:.0f}" if value >= LARGE or value == int(value) else f"{value:.1f}"


LARGE = 100
# Characters of a number.
NUMBER = 6
EXPIRED = " (expired)"
# All but the last are rates a second.
COLUMNS = ("look/s", "tok/s", "saved/s", "evict/s", "hit")


# The width of all columns but names, and the width from which on tenants are shown.
BESIDE_NAMES, WIDE = 69, 100


def _table(
    what: str,
    one: str,
    two: str,
    rows: list[tuple[str, str, str, int, int, Activity]],
    width: int | None,
) -> Table:
    """Returns a table that fits a terminal of 80 columns: it cuts names, but no numbers.

    It names tenants if there are several, and if the terminal is wide enough.
    """
    several = len({row[2] for row in rows}) > 1 and (width is None or width >= WIDE)
    longest = None if width is None else max((width - BESIDE_NAMES) // (1 + several), SHORT_ID)
    table = Table(box=None, pad_edge=False)
    for column in (what, "name", "tenant")[: 2 + several]:
        table.add_column(column, no_wrap=True)
    for column in (one, two, *COLUMNS):
        table.add_column(column, justify="right", no_wrap=True, min_width=NUMBER)
    for identifier, name, tenant, first, second, activity in rows:
        names = [_cut(printable(each), longest) for each in (name, tenant)[: 1 + several]]
        table.add_row(identifier, *names, compact(first), compact(second), *_cells(activity))
    return table


def _cut(name: str, longest: int | None) -> Text:
    if longest is None or len(name) <= longest:
        return Text(name)
    return Text(f"{name[: longest - 1]}…")


def _cells(activity: Activity) -> tuple[str, ...]:
    counts = (
        activity.lookups,
        activity.asked_tokens,
        activity.saved_tokens,
        activity.evicted_pages,
    )
    rates = (compact(activity.per_second(each)) for each in counts)
    return (*rates, _share(activity.hit_rate))


def _plain(activity: Activity) -> dict[str, float | None]:
    rate = activity.per_second
    return {
        "seconds": activity.seconds,
        "lookups_per_second": rate(activity.lookups),
        "hit_rate": activity.hit_rate,
        "asked_tokens_per_second": rate(activity.asked_tokens),
        "saved_tokens_per_second": rate(activity.saved_tokens),
        "inserted_pages_per_second": rate(activity.inserted_pages),
        "evicted_pages_per_second": rate(activity.evicted_pages),
        "thrash": activity.thrash,
    }


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
