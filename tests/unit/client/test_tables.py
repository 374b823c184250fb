"""What an operator sees."""

import io

from rich.console import Console, RenderableType

from kvstore.v1 import lease_pb2, named_pin_pb2, store_pb2
from kvstore_client import tables


def shown(what: RenderableType) -> str:
    """Return what a terminal would show."""
    console = Console(file=io.StringIO(), width=260)
    console.print(what)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def cells(text: str) -> list[str]:
    """Return the cells of the last row of a table."""
    row = [line for line in text.splitlines() if line.startswith("│")][-1]
    return [cell.strip() for cell in row.strip("│").split("│")]


def test_totals_show_hits_and_shares() -> None:
    """The totals have the counts of matches and the share of tokens that was reused."""
    counters = lease_pb2.CacheCounters(
        lookup_count=3,
        full_hit_count=1,
        miss_count=2,
        asked_token_count=8,
        matched_token_count=2,
        copied_token_count=1,
        evicted_page_count=7,
        superseded_page_count=9,
    )
    text = shown(tables.totals_table(store_pb2.GetStatsResponse(counters=counters, pin_count=4)))
    assert "3 (1, 0, 2)" in text
    assert "2 + 1 of 8 37.5%" in text
    assert "7, 0, 9" in text
    assert "4, 0" in text


def test_tier_3_shows_its_state_and_what_became_of_it() -> None:
    """Of a store without one, and for who is no admin, its state alone."""
    absent = store_pb2.Tier3Stats(state=store_pb2.Tier3Stats.STATE_ABSENT)
    assert "absent" in shown(tables.tier_3_table(absent))
    tier_3 = store_pb2.Tier3Stats(
        state=store_pb2.Tier3Stats.STATE_FAILED,
        size_bytes=64 << 20,
        page_count=3,
        slot_count=5,
        written_page_count=7,
        refused_page_count=9,
        read_page_count=11,
        corrupt_page_count=13,
        unreadable_page_count=15,
        evicted_page_count=17,
        removed_page_count=19,
        bytes_per_second=21 << 20,
        declined_load_count=23,
        recovered_page_count=25,
        torn_slot_count=27,
    )
    text = shown(tables.tier_3_table(tier_3))
    for wanted in ("failed", "64", "3 of 5", "7 (9)", "11 (13, 15)", "17, 19", "21 (23)"):
        assert wanted in text
    assert cells(text)[-1] == "25 (27)"


def test_a_tenant_shows_what_it_has_of_what_it_may_have() -> None:
    """Counts stand beside their quotas; where there is no quota, alone."""
    tenant = store_pb2.TenantStats(
        tenant="uid-7",
        quotas=store_pb2.Quotas(
            tier1_bytes=8 << 20, leases=5, pins=6, named_pins=7, requests_per_second=2.5
        ),
        tier1_bytes=3 << 20,
        lease_count=1,
        pin_count=2,
        named_pin_count=3,
        request_count=100,
        refused_request_count=40,
    )
    text = shown(tables.tenants_table([tenant]))
    wanted = ["uid-7", "3 of 8", "1 of 5", "2 of 6", "3 of 7", "100", "40", "2.5"]
    assert cells(text) == wanted
    tenant.quotas.ClearField("tier1_bytes")
    tenant.quotas.ClearField("requests_per_second")
    text = shown(tables.tenants_table([tenant]))
    assert cells(text)[1] == "3"
    assert cells(text)[-1] == ""


def test_an_arena_shows_its_slots_by_state() -> None:
    """Each state has a column, in the order of the contract."""
    arena = store_pb2.ArenaStats(
        arena_id=1,
        tenant="uid-7",
        tier=1,
        slot_bytes=1 << 20,
        extent_count=2,
        retiring_extent_count=9,
        slot_count=21,
        free_slot_count=1,
        reserved_slot_count=2,
        cached_slot_count=3,
        detached_slot_count=4,
        moving_slot_count=5,
        quarantined_slot_count=6,
    )
    wanted = ["1", "uid-7", "1", "21", "2", "9", "21", "1", "2", "3", "4", "5", "6"]
    assert cells(shown(tables.arenas_table([arena]))) == wanted


def test_a_namespace_shows_what_it_holds() -> None:
    """Pages, nodes and pins are there, and no share where nothing was asked."""
    namespace = store_pb2.NamespaceInfo(
        namespace_id=bytes(range(16)),
        tenant="uid-7",
        identity={"display_name": "gemma"},
        layout={"page_tokens": 16},
        arena_id=1,
        cached_page_count=5,
        node_count=2,
        pin_count=3,
        named_pin_count=4,
    )
    wanted = ["00010203", "gemma", "uid-7", "1", "16", "5", "2", "0", "3", "4", "0", ""]
    assert cells(shown(tables.namespaces_table([namespace]))) == wanted


def test_a_lease_shows_what_it_holds() -> None:
    """Holds and ages are there; a name of another program's is never taken for markup."""
    lease = lease_pb2.LeaseInfo(
        lease_id=bytes(range(16)),
        display_name="[red]w",
        tenant="uid-7",
        state=lease_pb2.LeaseInfo.STATE_EXPIRED,
        processes=[{"pid": 8, "uid": 7}, {"pid": 9, "uid": 7}],
        age={"seconds": 60},
        since_renewal={"seconds": 20},
        pin_count=1,
        pinned_page_count=2,
        reservation_count=3,
        in_flight_count=12,
        reserved_slot_count=4,
        quarantined_slot_count=5,
        oldest_hold_age={"seconds": 6},
        detached_page_count=7,
        oldest_quarantine_age={"seconds": 11},
    )
    ours = ["00010203", "[red]w", "uid-7", "expired", "8, 9", "7", "60", "20"]
    held = ["1", "2", "7", "3", "12", "4", "5", "6", "11"]
    assert cells(shown(tables.leases_table([lease]))) == [*ours, *held]
    lease.ClearField("oldest_hold_age")
    lease.ClearField("oldest_quarantine_age")
    assert cells(shown(tables.leases_table([lease])))[-2:] == ["", ""]


def test_a_hold_shows_what_it_is() -> None:
    """Kind, id, namespace, pages and age are there, and no token."""
    hold = lease_pb2.HoldInfo(
        kind=lease_pb2.HoldInfo.KIND_SOURCE,
        hold_id=1 << 63,
        namespace_id=b"\xab" * 16,
        page_count=1,
        token_count=2,
        detached_page_count=3,
        slot_count=4,
        announced_token_count=6,
        age={"seconds": 5},
    )
    row = ["source", str(1 << 63), "gemma", "1", "2", "3", "4", "6", "5"]
    assert cells(shown(tables.holds_table([hold], {hold.namespace_id: "gemma"}))) == row
    assert cells(shown(tables.holds_table([hold], {})))[2] == "abababab"
    hold.announced_token_count = 0
    assert cells(shown(tables.holds_table([hold], {})))[-2:] == ["", "5"]


def test_a_named_pin_shows_what_it_holds() -> None:
    """Name, namespace, tokens and times are there; without an end nothing is left to show."""
    pin = named_pin_pb2.NamedPinInfo(
        namespace_id=b"\xab" * 16,
        name="[red]system",
        pinned_token_count=64,
        age={"seconds": 5},
        remaining={"seconds": 55},
    )
    titles = {pin.namespace_id: "gemma (abababab)"}
    row = ["[red]system", "gemma (abababab)", "64", "5", "55"]
    assert cells(shown(tables.named_pins_table([pin], titles))) == row
    pin.ClearField("remaining")
    assert cells(shown(tables.named_pins_table([pin], {})))[1:] == ["abababab", "64", "5", ""]


def test_a_name_commands_no_terminal() -> None:
    """What a terminal would obey of another program's name is shown and not sent."""
    lease = lease_pb2.LeaseInfo(display_name="a\x1b[2J\u202eb\n[red]c")
    text = shown(tables.leases_table([lease]))
    assert "a\\x1b[2J\\u202eb\\n[red]c" in text
    assert "\x1b" not in text
