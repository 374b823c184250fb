"""Messages of the request path to core's types and back."""

from array import array
from math import inf
from typing import TypeVar

import pytest
from google.protobuf.message import Message

from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PagedContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import (
    ExpectedReuse,
    Grant,
    InFlight,
    Inserted,
    Match,
    Peeked,
    ReservationRequest,
    ReuseHint,
    Sequence,
    Source,
)
from kvstore.core.values.runs import Run
from kvstore.errors import InvalidField, LimitExceeded
from kvstore.rpc.wire import convert
from kvstore.rpc.wire.answer import Answer, serialized
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import types_pb2

LIMITS = Limits(max_tokens=16, max_batch_size=2)
PAGED = PageLayout(4, 256, 1, PagedContent(2, 1, 4, "float32"))
OPAQUE = PageLayout(4, 100, 1, OpaqueContent(b"f", divides_by_token=True))
RUN = Run(7, 1, array("I", [3, 1]), array("Q", [5, 2**40]))
RUN_MESSAGE = types_pb2.PageRun(
    extent_id=7, tier=types_pb2.TIER_1, slot_indexes=[3, 1], generations=[5, 2**40]
)

M = TypeVar("M", bound=Message)


def read(kind: type[M], answer: Answer) -> M:
    """Returns what a client makes of an answer."""
    return kind.FromString(serialized(answer))


def test_a_sequence_keeps_which_base_it_names() -> None:
    """A sequence names a pin, a reservation or nothing; an id of zero still names."""
    plain = pb.Sequence(tokens=bytes(8))
    on_pin = pb.Sequence(tokens=bytes(8), position=4, base_pin_id=0)
    on_reservation = pb.Sequence(tokens=bytes(8), position=4, base_reservation_id=9)
    assert convert.sequence_of(plain) == Sequence(bytes(8))
    assert convert.sequence_of(on_pin) == Sequence(bytes(8), 4, 0, None)
    assert convert.sequence_of(on_reservation) == Sequence(bytes(8), 4, None, 9)


def test_tokens_that_came_beside_a_sequence_are_its_own() -> None:
    """They replace those that it has."""
    named = pb.Sequence(tokens=bytes(8), position=4, base_pin_id=2)
    assert convert.sequence_of(named, b"full") == Sequence(b"full", 4, 2)


def test_reservations_keep_their_order() -> None:
    """Each entry becomes one request, in the same order."""
    message = pb.ReservePagesRequest(
        reservations=[
            pb.ReservationRequest(reservation_id=2, start_page=1, page_count=3),
            pb.ReservationRequest(reservation_id=1, page_count=4),
        ]
    )
    expected = [ReservationRequest(2, 1, 3), ReservationRequest(1, 0, 4)]
    assert convert.reservations_of(message, LIMITS) == expected


def test_reservations_are_checked() -> None:
    """Too many entries are refused, and an entry without an id."""
    three = [pb.ReservationRequest(reservation_id=number) for number in (1, 2, 3)]
    with pytest.raises(LimitExceeded):
        convert.reservations_of(pb.ReservePagesRequest(reservations=three), LIMITS)
    with pytest.raises(InvalidField):
        convert.reservations_of(
            pb.ReservePagesRequest(reservations=[pb.ReservationRequest()]), LIMITS
        )


def test_a_next_token_of_zero_is_one() -> None:
    """An insert may have no next token, which is not the same as token zero."""
    assert convert.next_token_of(pb.InsertPrefixRequest()) is None
    assert convert.next_token_of(pb.InsertPrefixRequest(next_token=0)) == 0


def test_a_hint_is_no_reason_to_refuse() -> None:
    """A hint is read as far as it is known; one of a later version says nothing."""
    assert convert.hint_of(pb.InsertPrefixRequest()) is None
    known = types_pb2.ReuseHint(expected_reuse=2, horizon_ms=1500, priority=-1)  # type: ignore[arg-type]
    assert convert.hint_of(pb.InsertPrefixRequest(hint=known)) == ReuseHint(
        ExpectedReuse.ONE_SHOT, 1.5, -1
    )
    later = types_pb2.ReuseHint(expected_reuse=77)  # type: ignore[arg-type]
    assert convert.hint_of(pb.InsertPrefixRequest(hint=later)) == ReuseHint()


@pytest.mark.parametrize("layout", [PAGED, OPAQUE], ids=["paged", "opaque"])
def test_a_layout_survives_the_round_trip(layout: PageLayout) -> None:
    """A layout as a message and back is the same layout."""
    assert convert.layout_of(convert.layout_message(layout), Limits()) == layout


def test_zeros_of_a_layout_are_its_defaults() -> None:
    """Without tensor-parallel size and kv factor a layout has 1 and 2."""
    message = convert.layout_message(PAGED)
    message.tensor_parallel_size = 0
    message.paged.kv_factor = 0
    assert convert.layout_of(message, Limits()) == PAGED


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("layout.content", lambda m: m.ClearField("paged")),
        ("layout.paged.kv_factor", lambda m: setattr(m.paged, "kv_factor", 3)),
        ("layout.paged.dtype", lambda m: setattr(m.paged, "dtype", "float31")),
        ("layout.paged.dtype", lambda m: setattr(m.paged, "dtype", "x" * 257)),
        ("layout.page_bytes", lambda m: setattr(m, "page_bytes", 255)),
        ("layout.page_tokens", lambda m: setattr(m, "page_tokens", 0)),
        ("layout.opaque.fingerprint", lambda m: m.opaque.SetInParent()),
        ("layout.opaque.fingerprint", lambda m: setattr(m.opaque, "fingerprint", bytes(65))),
    ],
)
def test_a_layout_is_checked(field: str, change: object) -> None:
    """A layout that cannot be one is refused, naming the field."""
    message = convert.layout_message(PAGED)
    assert callable(change)
    change(message)
    with pytest.raises(InvalidField) as caught:
        convert.layout_of(message, Limits())
    assert caught.value.metadata["field"] == field


def test_an_identity_is_read_and_the_salt_is_never_sent_back() -> None:
    """Digests, salt and name are read; what is listed of them leaves the salt out."""
    message = types_pb2.NamespaceIdentity(
        model_digest=b"m", adapter_digest=b"a", salt=b"s", display_name="name"
    )
    identity = convert.namespace_identity_of(message, Limits())
    assert identity == NamespaceIdentity(b"m", b"a", b"s", "name")
    assert convert.identity_message(identity) == types_pb2.NamespaceIdentity(
        model_digest=b"m", adapter_digest=b"a", display_name="name"
    )


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_digest", b""),
        ("model_digest", bytes(65)),
        ("adapter_digest", bytes(65)),
        ("salt", bytes(257)),
        ("display_name", "x" * 257),
    ],
)
def test_an_identity_is_checked(field: str, value: object) -> None:
    """A missing model digest, and anything too long, is refused."""
    message = types_pb2.NamespaceIdentity(model_digest=b"m")
    setattr(message, field, value)
    with pytest.raises(InvalidField) as caught:
        convert.namespace_identity_of(message, Limits())
    assert caught.value.metadata["field"] == f"identity.{field}"


def test_runs_keep_slots_and_generations_in_order() -> None:
    """A run as a message names its extent, tier, slots and generations."""
    answer = read(pb.InsertPrefixResponse, convert.insert_response(Inserted((RUN,), 1)))
    assert answer == pb.InsertPrefixResponse(runs=[RUN_MESSAGE], published_page_count=1)


def test_a_miss_is_an_empty_match() -> None:
    """A miss has neither tokens nor runs, and is present all the same; a match has both."""
    miss = read(pb.MatchPrefixResponse, convert.match_response(Match(0, ())))
    assert miss.HasField("match")
    assert miss.match == pb.PrefixMatch()
    match = pb.PrefixMatch(matched_token_count=8, runs=[RUN_MESSAGE], tier_3_token_count=16)
    answer = convert.match_response(Match(8, (RUN,), tier_3_token_count=16))
    assert read(pb.MatchPrefixResponse, answer).match == match


def test_what_is_in_flight_stands_beside_a_match() -> None:
    """Of a match as of a peek; time in whole milliseconds, as many as the wire has room for."""
    message = pb.InFlight(token_count=16, inserted_token_count=8, idle_ms=1500)
    found = InFlight(16, 8, 1.5004)
    match = read(pb.MatchPrefixResponse, convert.match_response(Match(8, (), in_flight=found)))
    assert match.match == pb.PrefixMatch(matched_token_count=8, in_flight=message)
    assert convert.peek_message(Peeked(0, (), in_flight=found)).in_flight == message
    acquired = convert.acquire_response(Match(0, (), in_flight=InFlight(8, 0, 1e9)), None)
    answer = read(pb.AcquirePrefixResponse, acquired)
    assert answer.match.in_flight.idle_ms == (1 << 32) - 1
    assert not answer.HasField("grant")


def test_an_acquire_yields_where_it_says_so() -> None:
    """To what advanced within a time, in seconds; without one, to whatever there is."""
    request = pb.AcquirePrefixRequest(yield_idle_ms=250)
    assert convert.yield_idle_of(request) is None
    request.yield_to_in_flight = True
    assert convert.yield_idle_of(request) == 0.25
    request.yield_idle_ms = 0
    assert convert.yield_idle_of(request) == inf


def test_a_match_has_its_source_and_its_next_token() -> None:
    """Both stand beside the runs; a next token may be zero."""
    response = convert.match_response(Match(0, (), Source(9, RUN, 2), next_token=0))
    answer = read(pb.MatchPrefixResponse, response).match
    assert answer.HasField("next_token")
    assert answer == pb.PrefixMatch(
        source=types_pb2.SourcePage(source_pin_id=9, page=RUN_MESSAGE, valid_token_count=2),
        next_token=0,
    )


def test_a_grant_names_its_reservation_and_start() -> None:
    """A grant carries its reservation's id, its start and its runs; there may be none."""
    grant = pb.ReservationGrant(reservation_id=5, start_page=2, runs=[RUN_MESSAGE])
    reserved = convert.reserve_response([Grant(5, 2, (RUN,))])
    assert read(pb.ReservePagesResponse, reserved).grants == [grant]
    acquired = convert.acquire_response(Match(0, ()), Grant(5, 2, (RUN,)))
    assert read(pb.AcquirePrefixResponse, acquired).grant == grant
    without = read(pb.AcquirePrefixResponse, convert.acquire_response(Match(0, ()), None))
    assert without.HasField("match")
    assert not without.HasField("grant")
