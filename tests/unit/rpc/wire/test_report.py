"""The core's snapshots as messages: each field is set, and none is mixed up."""

from dataclasses import fields, replace

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from kvstore.core.stats import (
    ArenaStats,
    HoldKind,
    HoldStats,
    LeaseStats,
    NamedPinStats,
    NamespaceStats,
    ProcessStats,
    Stats,
    TenantStats,
)
from kvstore.core.stats import PrefixStats as Prefix
from kvstore.core.values.counters import Counters
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.limits import Limits, Quotas
from kvstore.core.values.slots import SlotState
from kvstore.rpc.wire import report
from kvstore.rpc.wire.report import succession_message, tier_3_message
from kvstore.service.block_feed import KvEventUse
from kvstore.service.page_io.slow_tier import TierState, TierUse
from kvstore.service.page_io.tier3 import Tier3Use
from kvstore.service.tenancy.rate_limit import Requests
from kvstore.storage.page_store import StoreCounters
from kvstore.succession.store_succession import SuccessionUse
from kvstore.v1 import lease_pb2, store_pb2, types_pb2

COUNTERS = Counters(*range(1, 24))
# Told by another field, or the place in a list and no more.
NOT_SENT = {"epoch", "expired", "number"}
LEASE = LeaseStats(
    number=1,
    lease_id=bytes(16),
    display_name="worker",
    tenant="uid-1",
    expired=False,
    age=20.5,
    since_renewal=21.5,
    processes=(ProcessStats(pid=30, uid=31, connected=True, mapped_extent_count=32),),
    pin_count=22,
    reservation_count=23,
    in_flight_count=18,
    reserved_slot_count=24,
    quarantined_slot_count=25,
    pinned_page_count=26,
    detached_page_count=28,
    oldest_hold_age=27.5,
    oldest_quarantine_age=29.5,
    counters=COUNTERS,
)
NAMESPACE = NamespaceStats(
    number=1,
    namespace_id=bytes(16),
    tenant="uid-1",
    identity=NamespaceIdentity(b"model", b"adapter", b"salt", "name"),
    layout=PageLayout(4, 64, 1, OpaqueContent(b"layout")),
    arena_id=40,
    cached_page_count=41,
    node_count=42,
    detached_page_count=43,
    pin_count=44,
    named_pin_count=46,
    counters=COUNTERS,
    age=45.5,
)
ARENA = ArenaStats(
    arena_id=50,
    tenant="uid-1",
    tier=1,
    slot_bytes=51,
    extent_count=52,
    retiring_extent_count=54,
    slot_count=53,
    slots={state: 60 + state for state in SlotState},
)
PREFIX = Prefix(
    node_id=70,
    parent_node_id=71,
    start_page=72,
    page_count=73,
    token_count=77,
    child_count=74,
    pin_count=75,
    hit_count=76,
    tokens=bytes(8),
)
NAMED_PIN = NamedPinStats(
    number=90,
    namespace_id=bytes(16),
    name="system prompt",
    pinned_token_count=91,
    age=92.5,
    remaining=93.5,
    remote_token_count=94,
)
TENANT = TenantStats(
    tenant="uid-1",
    quotas=Quotas(
        tier1_bytes=95,
        share_bytes=96,
        leases=97,
        pins=98,
        named_pins=99,
        requests_per_second=100.5,
    ),
    tier1_bytes=101,
    lease_count=102,
    pin_count=103,
    named_pin_count=104,
)
STATS = Stats(
    epoch=80,
    counters=COUNTERS,
    arenas=(ARENA,),
    namespaces=(NAMESPACE,),
    leases=(LEASE,),
    pin_count=81,
    named_pin_count=84,
    reservation_count=82,
    in_flight_count=79,
    expired_lease_count=83,
    quarantined_slot_count=85,
    detached_page_count=86,
    oldest_quarantine_age=87.5,
    tenants=(TENANT,),
)
HOLD = HoldStats(
    number=1,
    kind=HoldKind.RESERVATION,
    hold_id=100,
    namespace_id=bytes(16),
    page_count=101,
    token_count=102,
    detached_page_count=103,
    slot_count=104,
    announced_token_count=105,
    age=105.5,
)

TIER_3 = Tier3Use(
    TierUse(
        TierState.OPEN,
        size_bytes=200,
        page_count=201,
        slot_count=202,
        counters=StoreCounters(
            written_pages=203,
            refused_writes=204,
            read_pages=205,
            corrupt_pages=206,
            unreadable_pages=207,
            evicted_pages=208,
            removed_pages=209,
            recovered_pages=210,
            torn_slots=211,
        ),
    ),
    bandwidth=212.5,
    declined_count=213,
)


SUCCESSION = SuccessionUse(
    holder="/run/kvstore-holder",
    instance=401,
    behind=402,
    journal_used_bytes=403,
    journal_capacity_bytes=404,
    failure="RingFull: 404 bytes",
    refusal="",
    recovered_page_count=405,
    clean_start="no journal is there",
)


def stats_message() -> store_pb2.GetStatsResponse:
    """Returns the statistics as a message of the protocol."""
    return report.stats_message(
        STATS,
        uptime=1.0,
        requests=lambda _: Requests(105, 106),
        tier_3=tier_3_message(TIER_3, whole=True),
        tier_bytes={1: 301, 2: 302},
        succession=succession_message(SUCCESSION, whole=True),
        remote=store_pb2.RemoteStats(state=store_pb2.RemoteStats.STATE_OPEN),
        kv_events=[KvEventUse("a", "ipc:///a", "ipc:///b", 1, 2, 3, 4, 5, 6, 7)],
    )


def unset(message: Message) -> list[str]:
    """Returns the fields of a message that have their defaults."""
    listed = {field.name for field, _ in message.ListFields()}
    return [field.name for field in message.DESCRIPTOR.fields if field.name not in listed]


@pytest.mark.parametrize(
    "message",
    [
        report.counters_message(COUNTERS),
        report.lease_message(LEASE),
        report.lease_message(LEASE).processes[0],
        report.hold_message(HOLD),
        report.namespace_message(NAMESPACE),
        report.prefix_message(PREFIX),
        report.named_pin_message(NAMED_PIN),
        stats_message(),
        stats_message().arenas[0],
        stats_message().tenants[0],
        stats_message().tenants[0].quotas,
        stats_message().tier_3,
        stats_message().tier_budgets[1],
        stats_message().succession,
        stats_message().kv_events[0],
        report.limits_message(Limits()),
    ],
    ids=lambda message: message.DESCRIPTOR.name,
)
def test_no_field_is_forgotten(message: Message) -> None:
    """A snapshot without zeros sets every field of its message."""
    assert unset(message) == []


def test_of_tier_3_others_than_admins_see_its_state_alone() -> None:
    """A tenant sees only the state of tier 3, because all tenants share that tier."""
    message = tier_3_message(TIER_3, whole=False)
    assert message.ListFields() == [(message.DESCRIPTOR.fields_by_name["state"], message.state)]
    assert message.state == store_pb2.Tier3Stats.STATE_OPEN


@pytest.mark.parametrize(
    ("use", "state"),
    [
        (None, store_pb2.SuccessionStats.STATE_OFF),
        (SUCCESSION, store_pb2.SuccessionStats.STATE_GIVEN_UP),
        (SUCCESSION._replace(failure=""), store_pb2.SuccessionStats.STATE_BEHIND),
        (
            SUCCESSION._replace(failure="", behind=0, refusal="too many descriptors"),
            store_pb2.SuccessionStats.STATE_BEHIND,
        ),
        (SUCCESSION._replace(failure="", behind=0), store_pb2.SuccessionStats.STATE_KEPT),
    ],
)
def test_of_the_succession_others_than_admins_see_its_state_alone(
    use: SuccessionUse | None, state: store_pb2.SuccessionStats.State
) -> None:
    """A tenant learns whether the memory outlives the server, and not where it is kept."""
    message = succession_message(use, whole=False)
    assert message.ListFields() == [(message.DESCRIPTOR.fields_by_name["state"], state)]
    assert succession_message(use, whole=True).state == state


def test_why_a_holder_refuses_is_said() -> None:
    """The reason of a journal that was given up comes first."""
    use = SUCCESSION._replace(refusal="too many descriptors")
    assert succession_message(use, whole=True).failure_reason == SUCCESSION.failure
    use = use._replace(failure="")
    assert succession_message(use, whole=True).failure_reason == "too many descriptors"


def test_numbers_are_of_the_same_name() -> None:
    """A number goes into the field of its own name, in every message."""
    for source, message in (
        (COUNTERS, report.counters_message(COUNTERS)),
        (LEASE, report.lease_message(LEASE)),
        (LEASE.processes[0], report.lease_message(LEASE).processes[0]),
        (HOLD, report.hold_message(HOLD)),
        (NAMESPACE, report.namespace_message(NAMESPACE)),
        (PREFIX, report.prefix_message(PREFIX)),
        (NAMED_PIN, report.named_pin_message(NAMED_PIN)),
        (ARENA, stats_message().arenas[0]),
        (TENANT, stats_message().tenants[0]),
        (TENANT.quotas, stats_message().tenants[0].quotas),
        (STATS, stats_message()),
    ):
        for each in fields(source):
            value = getattr(source, each.name)
            if isinstance(value, int | str | bytes) and each.name not in NOT_SENT:
                assert getattr(message, each.name) == value, each.name


def test_kinds_of_holds_have_the_same_names() -> None:
    """Each kind of hold keeps its name in the message."""
    for kind in HoldKind:
        told = report.hold_message(replace(HOLD, kind=kind)).kind
        assert lease_pb2.HoldInfo.Kind.Name(told) == f"KIND_{kind.name}"


def test_slots_are_counted_by_their_states() -> None:
    """The count of each slot state goes into the field named after the state."""
    arena = stats_message().arenas[0]
    for state in SlotState:
        assert getattr(arena, f"{state.name.lower()}_slot_count") == 60 + state


def test_a_lease_without_holds_has_no_oldest() -> None:
    """A lease without holds has no oldest age. Active and expired leases have their own states."""
    ages = {"oldest_hold_age": None, "oldest_quarantine_age": None}
    idle = report.lease_message(replace(LEASE, expired=True, **ages))
    assert not any(idle.HasField(each) for each in ages)
    assert idle.state == lease_pb2.LeaseInfo.STATE_EXPIRED
    assert report.lease_message(LEASE).state == lease_pb2.LeaseInfo.STATE_ACTIVE


def test_a_named_pin_without_an_end_has_no_time_left() -> None:
    """A named pin without an end has no remaining time. One whose time is over has zero."""
    endless = report.named_pin_message(replace(NAMED_PIN, remaining=None))
    assert not endless.HasField("remaining")
    assert report.named_pin_message(replace(NAMED_PIN, remaining=0.0)).HasField("remaining")


def test_the_salt_is_left_out() -> None:
    """A listed namespace leaves out the salt, which may be a secret."""
    assert report.namespace_message(NAMESPACE).identity == types_pb2.NamespaceIdentity(
        model_digest=b"model", adapter_digest=b"adapter", display_name="name"
    )


def test_spans_of_time_are_exact_to_the_nanosecond() -> None:
    """Seconds become a duration that is rounded to nanoseconds."""
    assert report.duration(20.5) == Duration(seconds=20, nanos=500_000_000)
    assert report.duration(0.2) == Duration(nanos=200_000_000)
