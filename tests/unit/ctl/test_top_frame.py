"""A frame of kvstore-ctl top, on terminals of every width."""

import io

import pytest
from rich.console import Console

from kvstore.v1 import store_pb2
from kvstore_ctl.top.frame import Screen, compact, rendered, span
from kvstore_ctl.top.rates import change_between

COUNTERS = {
    "lookup_count": 100,
    "asked_token_count": 200_000,
    "matched_token_count": 150_000,
    "inserted_page_count": 900,
    "evicted_page_count": 400,
    "returned_page_count": 300,
}


def snapshot(uptime: int, times: int, *tenants: str) -> store_pb2.GetStatsResponse:
    """Returns a snapshot in which each tenant has ``times`` the same counters."""
    counters = {name: count * times for name, count in COUNTERS.items()}
    return store_pb2.GetStatsResponse(
        store_epoch=1,
        uptime={"seconds": uptime},
        counters=counters,
        arenas=[
            {"tier": 1, "slot_count": 1000, "slot_bytes": 1 << 20}
            | {"cached_slot_count": 700, "reserved_slot_count": 60, "free_slot_count": 240}
        ],
        namespaces=[
            {"namespace_id": each.encode() * 8, "tenant": each, "counters": counters}
            | {"identity": {"display_name": "Qwen/Qwen3-8B-Instruct"}, "cached_page_count": 70_000}
            for each in tenants
        ],
        leases=[
            {"lease_id": each.encode() * 8, "tenant": each, "counters": counters}
            | {"display_name": "vllm-server-0", "state": "STATE_EXPIRED"}
            for each in tenants
        ],
    )


def lines(width: int, *tenants: str, trouble: str = "") -> list[str]:
    """Returns a frame's lines on a terminal of that many columns."""
    before, after = snapshot(98, 1, *tenants), snapshot(100, 2, *tenants)
    frame = Screen(after, change_between(before, after), "tokens", 5)
    console = Console(file=io.StringIO(), width=width)
    console.print(rendered(frame, width=width, trouble=trouble, keys=True))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_a_frame_says_what_the_store_does() -> None:
    """A frame has rates over two seconds and shares, and marks an expired lease."""
    assert [" ".join(line.split()) for line in lines(100, "a")] == [
        "up 1m40s, last 2.0 s by the store's clock, sorted by tokens",
        "hit rate now 75.0%, overall 75.0%; lookups a second 50.0",
        "tokens saved a second now 75000, overall 3000",
        "pages a second: inserted 450.0, evicted 200.0; thrash 33.3%",
        f"tier 1 [{'#' * 24}={'.' * 7}] 76% of 1000 slots, 1000 MiB",
        "#cached =reserved ~detached >moving !quarantined .free",
        "namespace name pages pins look/s tok/s saved/s evict/s hit",
        "61616161 Qwen/Qwen3-8B-Instruct 70.0k 0 50 100.0k 75.0k 200 75.0%",
        "lease name pinned slots look/s tok/s saved/s evict/s hit",
        "61616161 vllm-server-0 (expired) 0 0 50 100.0k 75.0k 200 75.0%",
        "q quits, s sorts by the next column, Ctrl-C ends",
    ]


@pytest.mark.parametrize("width", [80, 100])
def test_a_frame_has_room_on_a_terminal(width: int) -> None:
    """No line is broken, and names are cut instead of numbers."""
    shown = lines(width, "a", "b")
    assert len(shown) == 13
    for row in shown[7:9] + shown[10:12]:
        assert row.split()[-5:] == ["50", "100.0k", "75.0k", "200", "75.0%"]


def test_a_store_that_is_gone_is_said() -> None:
    """The first line says that the store does not answer, instead of the current state."""
    first = lines(100, "a", trouble="no answer")[0]
    assert first == "no answer"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((0, "0"), (7.54, "7.5"), (50.0, "50"), (123.4, "123"), (9_999, "9999")),
        *((56_700, "56.7k"), (900_000, "900.0k"), (1_230_000, "1.2M"), (45e9, "45.0G")),
    ],
)
def test_numbers_are_short(value: float, text: str) -> None:
    """A number has one digit after the point if there is room."""
    assert compact(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (42.9, "42s"), (307, "5m07s"), (11_100, "3h05m"), (187_200, "2d04h")],
)
def test_times_are_for_people(seconds: float, text: str) -> None:
    """Times have two units at most."""
    assert span(seconds) == text


@pytest.mark.parametrize("state", [None, "STATE_KEPT", "STATE_BEHIND"])
def test_a_frame_says_whether_the_memory_outlives_the_server(state: str | None) -> None:
    """It is one line, which is cut on a narrow terminal, and none from an older server."""
    stats = snapshot(100, 2)
    if state is not None:
        reason = "these settings changed: device, prefix_cache_backend, tier2_bytes, tier3_path"
        stats.succession.MergeFrom(
            store_pb2.SuccessionStats(state=state, holder="/run/h", clean_start_reason=reason)
        )
    frame = Screen(stats, change_between(snapshot(98, 1), stats), "tokens", 5)
    console = Console(file=io.StringIO(), width=80)
    console.print(rendered(frame, width=80))
    assert isinstance(console.file, io.StringIO)
    shown = [each for each in console.file.getvalue().splitlines() if each.startswith("holder")]
    assert len(shown) == (0 if state is None else 1)
    assert all(len(each) == 80 and each.endswith("…") for each in shown)
