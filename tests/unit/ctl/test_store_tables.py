"""Tables of kvstore-ctl on a terminal of 80 columns, and on wider ones."""

import io

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from kvstore.v1 import lease_pb2, named_pin_pb2, store_pb2
from kvstore_ctl.store_tables import (
    MEBIBYTE,
    FittedTable,
    arenas_table,
    holder_line,
    holds_table,
    leases_table,
    named_pins_table,
    namespaces_table,
    span_text,
    tenants_table,
    tier_3_table,
    totals_table,
)

SPACE, LEASE = bytes(range(0xA0, 0xB0)), bytes(range(0xC0, 0xD0))
COUNTERS = {"lookup_count": 12_345, "asked_token_count": 1000, "matched_token_count": 386}
SPACES = [
    store_pb2.NamespaceInfo(
        namespace_id=SPACE,
        identity={"display_name": "Qwen/Qwen3-8B"},
        tenant="uid-1000",
        arena_id=4_294_967_295,
        layout={"page_tokens": 16},
        cached_page_count=70_000,
        counters=COUNTERS,
    )
]
LEASES = [
    lease_pb2.LeaseInfo(
        lease_id=LEASE,
        display_name="vllm-server-0",
        tenant="uid-1000",
        state=lease_pb2.LeaseInfo.STATE_EXPIRED,
        processes=[{"pid": 1_234_567, "uid": 1000}, {"pid": 1_234_568, "uid": 1000}],
        pin_count=12,
        pinned_page_count=34_567,
        reserved_slot_count=890,
    )
]
ARENAS = [
    store_pb2.ArenaStats(
        arena_id=4_294_967_295,
        tenant="uid-1000",
        tier="TIER_1",
        slot_count=70_000,
        slot_bytes=1 << 20,
        cached_slot_count=69_000,
    )
]
TENANTS = [store_pb2.TenantStats(tenant="uid-1000", request_count=123_456_789)]
HOLDS = [lease_pb2.HoldInfo(hold_id=(1 << 64) - 1, namespace_id=SPACE, page_count=99)]
PINS = [
    named_pin_pb2.NamedPinInfo(name="system", namespace_id=SPACE, remaining={"seconds": 604_800}),
    named_pin_pb2.NamedPinInfo(name="brief", namespace_id=SPACE),
]


def lines(shown: RenderableType, width: int = 80) -> list[str]:
    """Returns the lines on a terminal of that many columns."""
    console = Console(file=io.StringIO(), width=width)
    console.print(shown)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def all_tables(*, wide: bool) -> list[tuple[FittedTable, list[str]]]:
    """Returns each table with the texts that must not be broken."""
    space, lease = (each.hex()[: None if wide else 8] for each in (SPACE, LEASE))
    return [
        (
            leases_table(LEASES, wide=wide),
            [lease, "vllm-server-0", "expired", "34567"],
        ),
        (
            namespaces_table(SPACES, wide=wide),
            [space, "Qwen/Qwen3-8B", "70000", "38.6%"],
        ),
        (arenas_table(ARENAS, wide=wide), ["4294967295", "69000", "quarantined"]),
        (tenants_table(TENANTS, wide=wide), ["uid-1000", "123456789"]),
        (
            holds_table(HOLDS, {SPACE: "library (a0a1a2a3)"}, wide=wide),
            ["(a0a1a2a3)", "99"],
        ),
        (named_pins_table(PINS, {}), ["system", "for ever", "7 d"]),
        (named_pins_table(PINS, {}, has_remote_tier=True), ["system", "shared", "7 d"]),
    ]


@pytest.mark.parametrize("wide", [False, True])
def test_eighty_columns_are_enough(*, wide: bool) -> None:
    """No line is longer than 80, no word or number is broken, and left-out columns are named."""
    for table, wanted in all_tables(wide=wide):
        shown = lines(table)
        assert max(map(cell_len, shown)) <= 80, shown
        for word in wanted:
            assert any(word in line for line in shown), (word, shown)
        assert not wide or not any("--wide shows" in line for line in shown)
    left_out = lines(leases_table(LEASES))[-2:]
    assert "--wide shows also:" in " ".join(left_out)
    assert "detached" in " ".join(left_out)
    # The names contain commas.
    assert "; oldest hold, s; in quarantine, s; " in " ".join(left_out)


def test_quarantine_has_an_age_where_there_is_one() -> None:
    """The age is shown only if a slot is in quarantine."""
    nothing = store_pb2.GetStatsResponse()
    some = store_pb2.GetStatsResponse(
        quarantined_slot_count=3, oldest_quarantine_age={"seconds": 42}
    )
    for stats, shown in ((nothing, "│ 0 "), (some, "│ 3 (42) ")):
        (line,) = [each for each in lines(totals_table(stats)) if "in quarantine" in each]
        assert shown in line
        assert "()" not in line


def test_what_a_tier_took_of_its_budget_is_summed_over_arenas() -> None:
    """A tier's known budget shows the sum of its arenas, also if it is 0."""
    arena = {"slot_count": 3, "slot_bytes": MEBIBYTE}
    stats = store_pb2.GetStatsResponse(
        arenas=[{"tier": tier, **arena} for tier in ("TIER_1", "TIER_1")],
        tier_budgets=[{"tier": tier, "size_bytes": 1 << 33} for tier in ("TIER_1", "TIER_2")],
    )
    shown = [each for each in lines(totals_table(stats)) if "budget" in each]
    assert ["6 of 8192" in shown[0], "0 of 8192" in shown[1]] == [True, True]
    assert ["tier 1" in shown[0], "tier 2" in shown[1]] == [True, True]
    stats.ClearField("tier_budgets")
    assert not any("budget" in each for each in lines(totals_table(stats)))


def test_a_tenant_s_reservations_count_among_its_holds() -> None:
    """A tenant's pins and reservations together are called holds, and not pins."""
    titles = lines(tenants_table(TENANTS), 200)[2]
    assert "holds" in titles
    assert " pins " not in titles.replace("named pins", "")


def test_a_wide_terminal_has_every_column() -> None:
    """A wide terminal has every column and one line a row."""
    shown = lines(leases_table(LEASES), 300)
    assert "in quarantine, s" in shown[2]
    assert len(shown) == 6


def test_columns_that_matter_stay_and_others_as_they_fit() -> None:
    """Columns keep their order, rows that do not fit are records, and markup is shown as text."""
    table = FittedTable("t", ("one", "two", "three"), [("[b]x", "y" * 20, "z")], first=("three",))
    assert lines(table, 40)[2].split("┃")[1:4] == [" one  ", f" two{' ' * 18}", " three "]
    narrow = lines(table, 20)
    assert narrow[2].split("┃")[1:-1] == [" one  ", " three "]
    assert [line.rstrip() for line in narrow[-2:]] == ["--wide shows also:", "two"]
    records = lines(FittedTable("t", ("one", "two"), [("[b]x", "y" * 20)], first=("two",)), 22)
    assert [line.split() for line in records[1:4]] == [["one", "[b]x"], ["two", "y" * 17], ["yyy"]]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((0, "0 s"), (42, "42 s"), (60, "1 min"), (307, "5 min 7 s")),
        *((43_200, "12 h"), (604_799, "6 d 23 h"), (604_800, "7 d")),
    ],
)
def test_times_are_for_people(seconds: int, text: str) -> None:
    """Times have one unit or two."""
    assert span_text(seconds) == text


def test_pages_that_came_back_are_counted() -> None:
    """The table shows pages that were published again soon after their eviction."""
    stats = store_pb2.GetStatsResponse(counters={"returned_page_count": 77})
    (line,) = [each for each in lines(totals_table(stats)) if "returned" in each]
    assert "77" in line


def test_slots_of_tier_3_are_those_so_far() -> None:
    """Tier 3 shows its slots so far, because a full count does not mean a full disk."""
    tier_3 = store_pb2.Tier3Stats(page_count=5, slot_count=5, size_bytes=1 << 30)
    (line,) = [each for each in lines(tier_3_table(tier_3)) if "5 of 5" in each]
    assert "slots so far" in line


@pytest.mark.parametrize(
    ("succession", "line"),
    [
        ({}, ""),
        ({"state": "STATE_OFF"}, "none: the pages end with the server"),
        ({"state": "STATE_KEPT"}, "has everything"),
        (
            {"state": "STATE_KEPT", "holder": "/run/h", "recovered_page_count": 1}
            | {"journal_used_bytes": MEBIBYTE // 2, "journal_size_bytes": 16 * MEBIBYTE},
            "has everything; journal 0.5 of 16.0 MiB; 1 page recovered",
        ),
        (
            {"state": "STATE_BEHIND", "holder": "/run/h", "behind_count": 3}
            | {"clean_start_reason": "no holder"},
            "BEHIND: a kill now loses the pages; 3 descriptors behind; a clean start (no holder)",
        ),
        (
            {"state": "STATE_GIVEN_UP", "holder": "systemd"},
            "NO JOURNAL: the next server begins empty; 0 pages recovered",
        ),
    ],
)
def test_a_line_says_whether_the_memory_outlives_the_server(
    succession: dict[str, object], line: str
) -> None:
    """The line is in the table of totals, unless the server is too old to say it."""
    message = store_pb2.SuccessionStats(**succession)  # type: ignore[arg-type]
    assert holder_line(message) == line
    shown = lines(totals_table(store_pb2.GetStatsResponse(succession=message)), 200)
    rows = [each for each in shown if "holder" in each]
    assert [line in each for each in rows] == [True] * bool(line)
