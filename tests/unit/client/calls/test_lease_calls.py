"""The calls of one lease as the store receives them."""

from collections.abc import Iterator
from datetime import timedelta

import pytest
from google.protobuf.message import Message

from kvstore.v1 import lease_pb2, prefix_cache_pb2, store_pb2
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.namespace_key import NamespaceIdentity
from kvstore_client.values.page_layout import OpaqueContent, PageLayout
from wire.scripted_store import ScriptedCalls

CALLER = prefix_cache_pb2.Caller(
    lease_id=b"lease", store_epoch=5, slot_ranges=True, packed_slots=True
)
SEQUENCE = prefix_cache_pb2.Sequence(tokens=b"toke", position=4, base_pin_id=2)


@pytest.fixture
def lease(runtime_dir: RuntimeDir) -> Iterator[LeaseCalls]:
    """Provides the calls of a lease of epoch 5."""
    calls = StoreCalls(runtime_dir.grpc_target, "me", b"secret")
    yield LeaseCalls(calls, b"lease", 5)
    calls.close()


def only_request(scripted: ScriptedCalls, request: Message) -> Message:
    """Returns the only received request of a type."""
    (data,) = scripted.requests[type(request).__name__.removesuffix("Request")]
    return type(request).FromString(data)


def test_a_match_names_its_pin(scripted: ScriptedCalls, lease: LeaseCalls) -> None:
    """A match sends its lease, epoch and pin ids, and returns the match of the answer."""
    match = prefix_cache_pb2.PrefixMatch(matched_token_count=4)
    scripted.answer("MatchPrefix", prefix_cache_pb2.MatchPrefixResponse(match=match))
    asked = lease.match(
        b"space", b"toke", (9, 10), 30, accept_next_token=True, prefill_tokens_per_second=7
    )
    assert asked == match
    wanted = prefix_cache_pb2.MatchPrefixRequest(
        caller=CALLER,
        namespace_id=b"space",
        sequence={"tokens": b"toke"},
        pin_id=9,
        source_pin_id=10,
        accept_next_token=True,
        prefill_tokens_per_second=7,
    )
    assert only_request(scripted, wanted) == wanted


def test_an_acquire_names_its_pin_and_its_reservation(
    scripted: ScriptedCalls, lease: LeaseCalls
) -> None:
    """An acquire sends its pin ids, its reservation id and its total of pages."""
    response = prefix_cache_pb2.AcquirePrefixResponse(grant={"reservation_id": 10})
    scripted.answer("AcquirePrefix", response)
    assert lease.acquire(b"space", b"toke", (9, 11, 10), 3, 30) == response
    wanted = prefix_cache_pb2.AcquirePrefixRequest(
        caller=CALLER,
        namespace_id=b"space",
        sequence={"tokens": b"toke"},
        pin_id=9,
        source_pin_id=11,
        reservation_id=10,
        total_page_count=3,
    )
    assert only_request(scripted, wanted) == wanted


@pytest.mark.parametrize("idle_ms", [0, 250])
def test_an_acquire_yields_where_it_is_to(
    scripted: ScriptedCalls, lease: LeaseCalls, idle_ms: int
) -> None:
    """An acquire with an idle time, even zero, asks to yield to a prefill in flight."""
    scripted.answer("AcquirePrefix", prefix_cache_pb2.AcquirePrefixResponse())
    lease.acquire(b"space", b"toke", (9, 11, 10), 3, 30, yield_idle_ms=idle_ms)
    asked = only_request(scripted, prefix_cache_pb2.AcquirePrefixRequest())
    assert (asked.yield_to_in_flight, asked.yield_idle_ms) == (True, idle_ms)


def test_a_reserve_and_an_insert_go_as_they_are(scripted: ScriptedCalls, lease: LeaseCalls) -> None:
    """A reserve and an insert arrive unchanged."""
    reservation = prefix_cache_pb2.ReservationRequest(reservation_id=9, page_count=2)
    grant = prefix_cache_pb2.ReservationGrant(reservation_id=9)
    scripted.answer("ReservePages", prefix_cache_pb2.ReservePagesResponse(grants=[grant]))
    scripted.answer("InsertPrefix", prefix_cache_pb2.InsertPrefixResponse(published_page_count=2))
    assert lease.reserve(b"space", [reservation], 30) == [grant]
    insertion = prefix_cache_pb2.InsertPrefixRequest(
        reservation_id=9, sequence=SEQUENCE, next_token=0
    )
    assert lease.insert(insertion, 30).published_page_count == 2
    reserved = prefix_cache_pb2.ReservePagesRequest(
        caller=CALLER, namespace_id=b"space", reservations=[reservation]
    )
    inserted = prefix_cache_pb2.InsertPrefixRequest(
        caller=CALLER, reservation_id=9, sequence=SEQUENCE, next_token=0
    )
    assert only_request(scripted, reserved) == reserved
    assert only_request(scripted, inserted) == inserted


def test_what_is_given_back_goes_in_one_call(scripted: ScriptedCalls, lease: LeaseCalls) -> None:
    """Many pins are released in one call, and many reservations are aborted in one call."""
    scripted.answer("ReleasePins", prefix_cache_pb2.ReleasePinsResponse())
    scripted.answer("AbortReservation", prefix_cache_pb2.AbortReservationResponse())
    lease.release([1, 2], 30)
    lease.abort([3], 30)
    released = prefix_cache_pb2.ReleasePinsRequest(caller=CALLER, pin_ids=[1, 2])
    aborted = prefix_cache_pb2.AbortReservationRequest(caller=CALLER, reservation_ids=[3])
    assert only_request(scripted, released) == released
    assert only_request(scripted, aborted) == aborted


def test_a_lease_is_renewed_and_revoked_by_name(scripted: ScriptedCalls, lease: LeaseCalls) -> None:
    """Renewing returns the TTL in seconds. Renewing and revoking send the lease and its epoch."""
    scripted.answer("RenewLease", lease_pb2.RenewLeaseResponse(ttl=timedelta(seconds=1.5)))
    scripted.answer("RevokeLease", lease_pb2.RevokeLeaseResponse())
    assert lease.renew(30) == 1.5
    lease.revoke(30)
    renewed = lease_pb2.RenewLeaseRequest(lease_id=b"lease", store_epoch=5)
    revoked = lease_pb2.RevokeLeaseRequest(lease_id=b"lease", store_epoch=5)
    assert only_request(scripted, renewed) == renewed
    assert only_request(scripted, revoked) == revoked


def test_a_namespace_is_opened_by_identity_and_layout(
    scripted: ScriptedCalls, lease: LeaseCalls
) -> None:
    """Opening a namespace sends its identity and layout. Peeking sends its id only."""
    identity, layout = NamespaceIdentity(b"model"), PageLayout(4, 8, OpaqueContent(b"x"))
    response = store_pb2.OpenNamespaceResponse(namespace_id=b"space", arena_id=2)
    scripted.answer("OpenNamespace", response)
    scripted.answer("PeekPrefix", prefix_cache_pb2.PeekPrefixResponse(matched_token_count=4))
    assert lease.open_namespace(identity, layout, 30) == response
    assert lease.peek(b"space", b"toke", 30).matched_token_count == 4
    opened = store_pb2.OpenNamespaceRequest(
        lease_id=b"lease",
        store_epoch=5,
        identity=identity.to_message(),
        layout=layout.to_message(),
    )
    peeked = prefix_cache_pb2.PeekPrefixRequest(namespace_id=b"space", tokens=b"toke")
    assert only_request(scripted, opened) == opened
    assert only_request(scripted, peeked) == peeked


def test_a_prefetch_names_its_lease(scripted: ScriptedCalls, lease: LeaseCalls) -> None:
    """A prefetch sends its caller and its tokens, and no pin."""
    answer = prefix_cache_pb2.PrefetchPrefixResponse(loading_token_count=4)
    scripted.answer("PrefetchPrefix", answer)
    assert lease.prefetch(b"space", b"toke", 30) == answer
    wanted = prefix_cache_pb2.PrefetchPrefixRequest(
        caller=CALLER, namespace_id=b"space", sequence={"tokens": b"toke"}
    )
    assert only_request(scripted, wanted) == wanted
