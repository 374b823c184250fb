"""The remote tier's statistics as a message."""

import pytest
from google.protobuf.message import Message
from page_stores.memory_page_store import MemoryPageStore

from kvstore.remote.finding import EngineFinding, FindingKind
from kvstore.remote.remote_use import LookAnswer, Refusal, Rejection, RemoteUse
from kvstore.rpc.wire.remote_report import remote_message
from kvstore.service.page_io.loads.load_source import LoadUse
from kvstore.service.page_io.pin_refresher import PinUse
from kvstore.service.page_io.remote_facts import RemoteFacts
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.service.page_io.tier3 import PageStoreUse
from kvstore.storage.page_store import StoreFacts, StoreState
from kvstore.v1 import store_pb2

USE = RemoteUse(
    StoreState.OPEN,
    why="EngineCut: the connection ended",
    looks={each: number for number, each in enumerate(LookAnswer, 1)},
    look_seconds=1.5,
    read_pages=2,
    read_bytes=3,
    read_seconds=4.5,
    written_pages=5,
    written_bytes=6,
    refused_writes={each: number for number, each in enumerate(Refusal, 7)},
    rejected_pages={each: number for number, each in enumerate(Rejection, 17)},
    breaker_opened=30,
    revisions_lost=31,
    revisions_forged=32,
    removals_pending=33,
    queue_bytes=34,
    clock_skew=-35.5,
    latency=0.0365,
    node_count=3,
    nodes_away=("10.0.0.1:6379",),
    writes_stopped=True,
)
LOADS = LoadUse(
    load_count=1, declined_count=2, late_count=3, bandwidth=4.5, saved_prefill_seconds=6.5
)
FINDING = EngineFinding(
    FindingKind.PROMISE, "maxmemory-policy", "allkeys-lru", "it evicts all", "set it"
)


class CountingStore(MemoryPageStore):
    """A page store of several hosts with counts that a test sets."""

    def remote_use(self) -> RemoteUse:
        """Returns the counts of the test."""
        return USE


@pytest.fixture
def store() -> CountingStore:
    """Provides a page store."""
    return CountingStore(facts=StoreFacts(shared=True, loses_silently=True, look_seconds=0.001))


@pytest.fixture
def about() -> RemoteFacts:
    """Provides the facts about an engine that has told its settings."""
    about = RemoteFacts(
        "valkeys://cache", key_id=b"\x01\x02\x03\x04", writes="through", find=lambda: [FINDING]
    )
    about.ask_engine()
    return about


def use_of(store: CountingStore) -> PageStoreUse:
    """Returns the use of a tier over a page store, with some loads."""
    tier = SlowTier(store)
    return PageStoreUse(tier.kind, tier.use(), LOADS, PinUse(36, 37))


def unset(message: Message) -> set[str]:
    """Returns the fields of a message that have their defaults."""
    listed = {field.name for field, _ in message.ListFields()}
    return {field.name for field in message.DESCRIPTOR.fields} - listed


def test_an_admin_sees_every_count(store: CountingStore, about: RemoteFacts) -> None:
    """Each field has the value of one count."""
    message = remote_message(use_of(store), about, whole=True)
    assert message is not None
    assert unset(message) == set()
    assert (message.load_count, message.late_load_count, message.declined_load_count) == (1, 3, 2)
    assert (message.refreshed_pin_page_count, message.absent_pin_page_count) == (36, 37)
    assert message.state == store_pb2.RemoteStats.STATE_OPEN
    assert (message.hit_look_count, message.failed_look_count) == (1, 5)
    assert {each.reason: each.count for each in message.rejected_pages} == {
        "format": 17,
        "secret": 18,
        "seal": 19,
        "checksum": 20,
    }
    assert message.read_time.ToMilliseconds() == 4500
    assert message.clock_skew_seconds == -35.5
    assert message.saved_prefill_time.ToMilliseconds() == 6500
    assert (message.node_count, list(message.nodes_away)) == (3, ["10.0.0.1:6379"])
    assert unset(message.findings[0]) == set()
    assert message.findings[0].kind == store_pb2.EngineFinding.KIND_PROMISE


def test_a_tenant_sees_the_state_alone(store: CountingStore, about: RemoteFacts) -> None:
    """All tenants share the tier, and its engine's address is not theirs."""
    message = remote_message(use_of(store), about, whole=False)
    assert message == store_pb2.RemoteStats(state=store_pb2.RemoteStats.STATE_OPEN)


def test_an_engine_that_is_away_is_no_failure(store: CountingStore) -> None:
    """It comes back by itself."""
    store.state = StoreState.AWAY
    message = remote_message(use_of(store), None, whole=False)
    assert message == store_pb2.RemoteStats(state=store_pb2.RemoteStats.STATE_AWAY)


def test_a_store_without_the_tier_says_nothing() -> None:
    """The field is absent, as in an older server."""
    assert remote_message(None, None, whole=True) is None
