"""Occupancy as a bar of characters, which says the same without colours."""

from collections.abc import Sequence
from typing import NamedTuple

from rich.text import Text

from kvstore.v1 import store_pb2, types_pb2
from kvstore_client.ctl_counts import counted

WIDTH = 32
MEBIBYTE = 1 << 20


class Part(NamedTuple):
    """A part of a bar: its name, the character and the colour that it is drawn with."""

    name: str
    character: str
    style: str


PARTS = (
    Part("cached", "#", "green"),
    Part("reserved", "=", "yellow"),
    Part("detached", "~", "cyan"),
    Part("moving", ">", "magenta"),
    Part("quarantined", "!", "bold red"),
    Part("free", ".", "dim"),
)
LEGEND = " ".join(f"{part.character}{part.name}" for part in PARTS)


def cells_of(counts: Sequence[int], width: int) -> list[int]:
    """Return how many of ``width`` characters each count gets.

    Together they are ``width``, or none for nothing; what is there has one at least,
    which the largest give.
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
    """Return a bar of the counts of :data:`PARTS`, in their order."""
    drawn = Text("[")
    for part, cells in zip(PARTS, cells_of(counts, width), strict=True):
        drawn.append(part.character * cells, style=part.style)
    return drawn.append("]")


def tier_bars(stats: store_pb2.GetStatsResponse) -> list[Text]:
    """Return a line for each memory tier that has arenas, and one for an open tier 3."""
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


def share(part: int, whole: int) -> str:
    """Return a part of a whole in percent; nothing of nothing."""
    return f"{part / whole:.0%}" if whole else "0%"


def mebibytes(size: int) -> str:
    """Return bytes in MiB, with a digit where there are few."""
    return f"{size / MEBIBYTE:.1f} MiB" if size < 10 * MEBIBYTE else f"{size // MEBIBYTE} MiB"
