"""Occupancy as bars of characters."""

import pytest
from rich.text import Text

from kvstore.v1 import store_pb2
from kvstore_ctl.top.frame import bar, cells_of, mebibytes, share, tier_bars


@pytest.mark.parametrize(
    ("counts", "cells"),
    [
        ([0, 0], [0, 0]),
        ([5, 5], [5, 5]),
        ([1000, 1], [9, 1]),
        ([1, 1, 1000], [1, 1, 8]),
        ([1, 1, 1], [4, 3, 3]),
        ([7, 0, 3], [7, 0, 3]),
    ],
)
def test_a_bar_is_shared_out(counts: list[int], cells: list[int]) -> None:
    """A bar's parts fill it, and each nonempty part has a character."""
    assert cells_of(counts, 10) == cells


def test_a_bar_s_parts_differ_without_colours() -> None:
    """Each state has a character of its own."""
    assert bar([1, 1, 1, 1, 1, 1], 6).plain == "[#=~>!.]"


def plain(stats: store_pb2.GetStatsResponse) -> list[str]:
    """Returns the lines without colours."""
    lines: list[Text] = tier_bars(stats)
    return [each.plain for each in lines]


def test_each_tier_has_a_line() -> None:
    """The arenas of a tier share one bar, and tier 3 has a bar for its file."""
    arena = {
        "slot_bytes": 1 << 20,
        "slot_count": 20,
        "cached_slot_count": 10,
        "free_slot_count": 10,
    }
    stats = store_pb2.GetStatsResponse(
        arenas=[{**arena, "tier": 1}, {**arena, "tier": 1}, {**arena, "tier": 2}],
        tier_3={"state": "STATE_OPEN", "page_count": 3, "slot_count": 12, "size_bytes": 5 << 19},
    )
    first, second, third = plain(stats)
    assert first == f"tier 1  [{'#' * 16}{'.' * 16}]  50% of 40 slots, 40 MiB"
    assert second.endswith("50% of 20 slots, 20 MiB")
    assert third == f"tier 3  [{'#' * 8}{'.' * 24}]  25% of 12 slots so far, 2.5 MiB"


def test_a_tier_3_that_failed_is_said() -> None:
    """A failed tier 3 has a line that says what to do."""
    failed = store_pb2.GetStatsResponse(tier_3={"state": "STATE_FAILED"})
    assert "doctor" in plain(failed)[0]
    assert plain(store_pb2.GetStatsResponse(tier_3={"state": "STATE_ABSENT"})) == []


def test_shares_and_sizes_are_for_people() -> None:
    """Shares are percentages, with 0 % of nothing, and sizes are MiB."""
    assert (share(1, 4), share(0, 0)) == ("25%", "0%")
    assert (mebibytes(1 << 19), mebibytes(300 << 20)) == ("0.5 MiB", "300 MiB")
