"""Converts messages of the request path to the core's types and back."""

from array import array
from math import inf
from struct import pack

import pytest

from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PagedContent, PageLayout
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import (
    ExpectedReuse,
    Grant,
    GroupInsert,
    InFlight,
    Match,
    Peeked,
    ReservationRequest,
    ReuseHint,
    Sequence,
    SlotMoves,
    Source,
)
from kvstore.core.values.runs import Run
from kvstore.errors import InvalidField, LimitExceeded
from kvstore.rpc.wire import convert
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import types_pb2

LIMITS = Limits(max_tokens=16, max_batch_size=2)
PAGED = PageLayout(4, 256, 1, PagedContent(2, 1, 4, "float32"))
OPAQUE = PageLayout(4, 100, 1, OpaqueContent(b"f", divides_by_token=True))
RUN = Run(7, 1, array("I", [3, 1]), array("Q", [5, 2**40]))
RUN_MESSAGE = types_pb2.PageRun(
    extent_id=7, tier=types_pb2.TIER_1, slot_indexes=[3, 1], generations=[5, 2**40]
)

OLDER, NEWER = pb.Caller(), pb.Caller(slot_ranges=True, packed_slots=True)
RUN_MESSAGES = {
    "older": (OLDER, RUN_MESSAGE),
    "newer": (
        NEWER,
        types_pb2.PageRun(
            extent_id=7,
            tier=types_pb2.TIER_1,
            packed_slot_indexes=pack("<2I", 3, 1),
            packed_generations=pack("<2Q", 5, 2**40),
        ),
    ),
}
both_forms = pytest.mark.parametrize(
    ("caller", "run_message"), RUN_MESSAGES.values(), ids=RUN_MESSAGES
)


def matched(match: Match, caller: pb.Caller = OLDER) -> pb.MatchPrefixResponse:
    """Returns the answer with a match."""
    response = pb.MatchPrefixResponse()
    convert.fill_match(response.match, match, caller)
    return response


def test_a_sequence_keeps_which_base_it_names() -> None:
    """A sequence names a pin, a reservation or nothing. An id of zero also counts as a name."""
    plain = pb.Sequence(tokens=bytes(8))
    on_pin = pb.Sequence(tokens=bytes(8), position=4, base_pin_id=0)
    on_reservation = pb.Sequence(tokens=bytes(8), position=4, base_reservation_id=9)
    assert convert.sequence_of(plain) == Sequence(bytes(8))
    assert convert.sequence_of(on_pin) == Sequence(bytes(8), 4, 0, None)
    assert convert.sequence_of(on_reservation) == Sequence(bytes(8), 4, None, 9)


def test_tokens_that_came_beside_a_sequence_are_its_own() -> None:
    """Tokens that came beside a sequence replace its own tokens."""
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
    """An insert without a next token differs from an insert with next token zero."""
    assert convert.next_token_of(pb.InsertPrefixRequest()) is None
    assert convert.next_token_of(pb.InsertPrefixRequest(next_token=0)) == 0


def test_a_hint_is_no_reason_to_refuse() -> None:
    """A hint is read as far as it is known. A hint of a later version counts as none."""
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
    """A layout without tensor-parallel size and kv factor gets 1 and 2."""
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
    """An impossible layout is refused with the field's name."""
    message = convert.layout_message(PAGED)
    assert callable(change)
    change(message)
    with pytest.raises(InvalidField) as caught:
        convert.layout_of(message, Limits())
    assert caught.value.metadata["field"] == field


def test_an_identity_is_read_and_the_salt_is_never_sent_back() -> None:
    """Digests, salt and name are read. The listed identity leaves the salt out."""
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


def test_a_miss_is_an_empty_match() -> None:
    """A miss has neither tokens nor runs, and is present all the same."""
    miss = matched(Match(0, ()))
    assert miss.HasField("match")
    assert miss.match == pb.PrefixMatch()


@both_forms
def test_a_match_has_tokens_and_runs(caller: pb.Caller, run_message: types_pb2.PageRun) -> None:
    """A match names its runs in order, and the tokens that only tier 3 has and had."""
    other = Run(8, 2, array("I", [0]), array("Q", [1]))
    match = Match(
        8,
        (RUN, other),
        tier_3_token_count=16,
        tier_3_loaded_token_count=4,
        remote_loaded_token_count=3,
    )
    answer = matched(match, caller).match
    assert (answer.matched_token_count, answer.tier_3_token_count) == (8, 16)
    assert answer.tier_3_loaded_token_count == 4
    assert answer.remote_loaded_token_count == 3
    assert answer.runs[0] == run_message
    assert [(run.extent_id, run.tier) for run in answer.runs] == [(7, 1), (8, 2)]


def test_what_is_in_flight_stands_beside_a_match() -> None:
    """Matches and peeks report a prefill in flight, with its idle time in whole ms (32 bits)."""
    message = pb.InFlight(token_count=16, inserted_token_count=8, idle_ms=1500)
    found = InFlight(16, 8, 1.5004)
    answer = matched(Match(8, (), in_flight=found)).match
    assert answer == pb.PrefixMatch(matched_token_count=8, in_flight=message)
    assert convert.peek_message(Peeked(0, (), in_flight=found)).in_flight == message
    longest = matched(Match(0, (), in_flight=InFlight(8, 0, 1e9)))
    assert longest.match.in_flight.idle_ms == (1 << 32) - 1


def test_an_acquire_yields_where_it_says_so() -> None:
    """An acquire yields to a prefill that advanced within the given seconds, or to any prefill."""
    request = pb.AcquirePrefixRequest(yield_idle_ms=250)
    assert convert.yield_idle_of(request) is None
    request.yield_to_in_flight = True
    assert convert.yield_idle_of(request) == 0.25
    request.yield_idle_ms = 0
    assert convert.yield_idle_of(request) == inf


@both_forms
def test_a_match_has_its_source_and_its_next_token(
    caller: pb.Caller, run_message: types_pb2.PageRun
) -> None:
    """A match has its source page and its next token beside the runs. A next token may be zero."""
    answer = matched(Match(0, (), Source(9, RUN, 2), next_token=0), caller).match
    assert answer.HasField("next_token")
    assert answer == pb.PrefixMatch(
        source=types_pb2.SourcePage(source_pin_id=9, page=run_message, valid_token_count=2),
        next_token=0,
    )


@both_forms
def test_a_grant_names_its_reservation_and_start(
    caller: pb.Caller, run_message: types_pb2.PageRun
) -> None:
    """A grant carries its reservation's id, its start and its runs, in order."""
    message = pb.ReservationGrant()
    convert.fill_grant(message, Grant(5, 2, (RUN, RUN)), caller)
    assert message == pb.ReservationGrant(
        reservation_id=5, start_page=2, runs=[run_message, run_message]
    )


def test_slots_that_move_are_named_with_their_reservation() -> None:
    """Groups keep their order; without a reservation no slots are named."""
    limits = Limits(max_batch_size=2)
    group = pb.GroupInsert(group=1, page_positions=[3], slot_offsets=[5], page_checksums=[7])
    message = pb.InsertPrefixRequest(
        slots_reservation_id=9, slot_offsets=[4, 2], group_pages=[group]
    )
    moves = convert.moves_of(message, limits)
    assert moves == SlotMoves(9, (4, 2), [GroupInsert(1, (3,), (5,), (7,))])
    assert convert.moves_of(pb.InsertPrefixRequest(), limits) is None
    for bad in (
        pb.InsertPrefixRequest(slot_offsets=[1]),
        pb.InsertPrefixRequest(group_pages=[group]),
    ):
        with pytest.raises(InvalidField):
            convert.moves_of(bad, limits)
    with pytest.raises(LimitExceeded):
        convert.moves_of(
            pb.InsertPrefixRequest(slots_reservation_id=9, group_pages=[group] * 3), limits
        )
