"""What an operator sees of a store's tiers."""

from collections import Counter
from collections.abc import Mapping

from rich.table import Table

from kvstore.v1 import store_pb2

MEBIBYTE = 1 << 20


def memory_rows(stats: store_pb2.GetStatsResponse) -> dict[str, str]:
    """Return what the arenas took of each tier's budget, where the caller is told of that."""
    taken = Counter[int]()
    for arena in stats.arenas:
        taken[arena.tier] += arena.slot_count * arena.slot_bytes
    return {
        f"tier {each.tier}, MiB of its budget": f"{taken[each.tier] // MEBIBYTE} of "
        f"{each.size_bytes // MEBIBYTE}"
        for each in stats.tier_budgets
    }


def tier_3_table(tier_3: store_pb2.Tier3Stats) -> Table:
    """Return what tier 3 has, and what became of it; for others than admins its state alone."""
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
