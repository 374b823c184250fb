"""Messages of the request path to core's types and back, fields checked.

A conversion from a message raises InvalidField, LimitExceeded or
FeatureUnsupported, all before the store is asked anything.
"""

from collections.abc import Iterable
from math import inf

from kvstore.core import (
    ExpectedReuse,
    Grant,
    InFlight,
    Inserted,
    Limits,
    Match,
    MatchOptions,
    NamespaceIdentity,
    PageLayout,
    Peeked,
    ReservationRequest,
    ReuseHint,
    Sequence,
)
from kvstore.core.values.layout import OpaqueContent, PagedContent
from kvstore.errors import FeatureUnsupported, InvalidField, LimitExceeded
from kvstore.rpc.wire import fields
from kvstore.rpc.wire.answer import Answer, run_bytes, runs_field
from kvstore.rpc.wire.packed import fixed64_field, length_delimited, varint_field
from kvstore.service.tiers.disk_reader import LoadTerms
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import types_pb2

KEYS_AND_VALUES = 2
# What the wire has room for.
MAX_IDLE_MS = (1 << 32) - 1
EXPECTATIONS = {int(each): each for each in ExpectedReuse}
MATCH_OF_MATCH = pb.MatchPrefixResponse.MATCH_FIELD_NUMBER
MATCH_OF_ACQUIRE = pb.AcquirePrefixResponse.MATCH_FIELD_NUMBER
GRANT = pb.AcquirePrefixResponse.GRANT_FIELD_NUMBER
GRANTS = pb.ReservePagesResponse.GRANTS_FIELD_NUMBER
MATCHED = pb.PrefixMatch.MATCHED_TOKEN_COUNT_FIELD_NUMBER
RESERVATION = pb.ReservationGrant.RESERVATION_ID_FIELD_NUMBER
START_PAGE = pb.ReservationGrant.START_PAGE_FIELD_NUMBER
RUNS_OF_MATCH = pb.PrefixMatch.RUNS_FIELD_NUMBER
RUNS_OF_GRANT = pb.ReservationGrant.RUNS_FIELD_NUMBER
RUNS_OF_INSERT = pb.InsertPrefixResponse.RUNS_FIELD_NUMBER
# What most matches do not have: source, next token, tokens in tier 3, what is in flight.
NOTHING_RARE = Match(0, ())[2:]


def sequence_of(message: pb.Sequence, tokens: bytes | None = None) -> Sequence:
    """Returns a sequence, whose number of tokens and alignment the core checks.

    ``tokens`` are its tokens if they came beside the message.
    """
    base = message.WhichOneof("base")
    return Sequence(
        message.tokens if tokens is None else tokens,
        message.position,
        message.base_pin_id if base == "base_pin_id" else None,
        message.base_reservation_id if base == "base_reservation_id" else None,
    )


def reservations_of(message: pb.ReservePagesRequest, limits: Limits) -> list[ReservationRequest]:
    """Returns the reservations asked for."""
    fields.require_batch(message.reservations, limits)
    return [
        ReservationRequest(
            each.reservation_id or fields.missing_id("reservations.reservation_id"),
            each.start_page,
            each.page_count,
        )
        for each in message.reservations
    ]


def options_of(message: pb.MatchPrefixRequest | pb.AcquirePrefixRequest) -> MatchOptions:
    """Returns how a match is asked for."""
    pin_id = message.pin_id or fields.missing_id("pin_id")
    source_pin_id = message.source_pin_id or None
    speed = message.prefill_tokens_per_second
    return MatchOptions(pin_id, source_pin_id, message.accept_next_token, speed)


def terms_of(
    message: pb.MatchPrefixRequest | pb.AcquirePrefixRequest, remaining: float | None
) -> LoadTerms:
    """Returns how long a match may wait for tier 3, and the speed of the engine that asks.

    ``remaining`` is the time to the call's deadline in seconds, None without one.
    """
    wait = inf if remaining is None else remaining
    return LoadTerms(wait, message.prefill_tokens_per_second)


def yield_idle_of(message: pb.AcquirePrefixRequest) -> float | None:
    """Returns since when, in seconds, what an acquire yields to may not have advanced.

    None where it yields to nothing.
    """
    if not message.yield_to_in_flight:
        return None
    return message.yield_idle_ms / 1000 if message.yield_idle_ms else inf


def next_token_of(message: pb.InsertPrefixRequest) -> int | None:
    """Returns the next token to store."""
    return message.next_token if message.HasField("next_token") else None


def hint_of(message: pb.InsertPrefixRequest) -> ReuseHint | None:
    """Returns what is expected of the pages. An expectation that is not known is none."""
    if not message.HasField("hint"):
        return None
    hint = message.hint
    return ReuseHint(
        EXPECTATIONS.get(hint.expected_reuse, ExpectedReuse.UNKNOWN),
        hint.horizon_ms / 1000 if hint.horizon_ms else inf,
        hint.priority,
    )


def namespace_identity_of(
    message: types_pb2.NamespaceIdentity, limits: Limits
) -> NamespaceIdentity:
    """Returns who may share."""
    most = limits.max_digest_bytes
    return NamespaceIdentity(
        fields.checked_bytes("identity.model_digest", message.model_digest, least=1, most=most),
        fields.checked_bytes("identity.adapter_digest", message.adapter_digest, least=0, most=most),
        fields.checked_bytes("identity.salt", message.salt, least=0, most=limits.max_salt_bytes),
        fields.name("identity.display_name", message.display_name, limits),
    )


def layout_of(message: types_pb2.PageLayout, limits: Limits) -> PageLayout:
    """Returns a page layout; zeros that mean a default are that default.

    A rank's pages lie in an arena of its own: until arenas have ranks, there is one.
    """
    for limit in ("page_bytes", "page_tokens"):
        value, maximum = getattr(message, limit), getattr(limits, f"max_{limit}")
        if value > maximum:
            raise LimitExceeded(limit=f"max_{limit}", maximum=maximum, value=value)
    if message.tensor_parallel_size > 1:
        raise FeatureUnsupported(feature="tensor_parallel_size")
    content: PagedContent | OpaqueContent
    match message.WhichOneof("content"):
        case "paged":
            content = _paged_of(message.paged, limits)
        case "opaque":
            content = _opaque_of(message.opaque, limits)
        case _:
            raise InvalidField(field="layout.content", why="missing")
    return PageLayout(
        message.page_tokens, message.page_bytes, tensor_parallel_size=1, content=content
    )


def _paged_of(message: types_pb2.PagedLayout, limits: Limits) -> PagedContent:
    kv_factor = message.kv_factor or KEYS_AND_VALUES
    if kv_factor > KEYS_AND_VALUES:
        raise InvalidField(field="layout.paged.kv_factor", value=kv_factor, why="neither 1 nor 2")
    return PagedContent(
        message.layer_count,
        message.kv_head_count,
        message.head_dim,
        fields.name("layout.paged.dtype", message.dtype, limits),
        kv_factor,
    )


def _opaque_of(message: types_pb2.OpaqueLayout, limits: Limits) -> OpaqueContent:
    field, most = "layout.opaque.fingerprint", limits.max_digest_bytes
    fingerprint = fields.checked_bytes(field, message.fingerprint, least=1, most=most)
    return OpaqueContent(fingerprint, message.divides_by_token)


def match_response(match: Match, *, ranges: bool = False) -> Answer:
    """Returns a match as a message, its runs as :func:`run_bytes` writes them."""
    return length_delimited(MATCH_OF_MATCH, _match_bytes(match, ranges=ranges))


def acquire_response(match: Match, grant: Grant | None, *, ranges: bool = False) -> Answer:
    """Returns a match, and the slots for the rest if there are any, as a message."""
    matched = length_delimited(MATCH_OF_ACQUIRE, _match_bytes(match, ranges=ranges))
    if grant is None:
        return matched
    return matched + length_delimited(GRANT, _grant_bytes(grant, ranges=ranges))


def reserve_response(grants: Iterable[Grant], *, ranges: bool = False) -> Answer:
    """Returns the slots of reservations as a message."""
    written = (length_delimited(GRANTS, _grant_bytes(each, ranges=ranges)) for each in grants)
    return b"".join(written)


def insert_response(inserted: Inserted, *, ranges: bool = False) -> Answer:
    """Returns the pages that the index holds as a message."""
    response = pb.InsertPrefixResponse(published_page_count=inserted.published_page_count)
    runs = runs_field(RUNS_OF_INSERT, inserted.runs, ranges=ranges)
    return response.SerializeToString() + runs


def _match_bytes(match: Match, *, ranges: bool) -> bytes:
    """Returns a match as ``PrefixMatch`` is written: what most have by hand."""
    runs = runs_field(RUNS_OF_MATCH, match.runs, ranges=ranges)
    content = varint_field(MATCHED, match.matched_token_count) + runs
    if match[2:] == NOTHING_RARE:
        return content
    return content + _rare_of(match, ranges=ranges).SerializeToString()


def _rare_of(match: Match, *, ranges: bool) -> pb.PrefixMatch:
    """Returns what a match may answer besides."""
    message = pb.PrefixMatch(tier_3_token_count=match.tier_3_token_count)
    if match.source is not None:
        message.source.source_pin_id = match.source.pin_id
        message.source.valid_token_count = match.source.valid_token_count
        message.source.page.MergeFromString(run_bytes(match.source.page, ranges=ranges))
    if match.next_token is not None:
        message.next_token = match.next_token
    if match.in_flight is not None:
        message.in_flight.CopyFrom(_in_flight_message(match.in_flight))
    return message


def _in_flight_message(in_flight: InFlight) -> pb.InFlight:
    return pb.InFlight(
        token_count=in_flight.token_count,
        inserted_token_count=in_flight.inserted_token_count,
        idle_ms=min(int(in_flight.idle * 1000), MAX_IDLE_MS),
    )


def _grant_bytes(grant: Grant, *, ranges: bool) -> bytes:
    """Returns a grant as ``ReservationGrant`` is written."""
    reservation_id, start_page, runs = grant
    return (
        fixed64_field(RESERVATION, reservation_id)
        + varint_field(START_PAGE, start_page)
        + runs_field(RUNS_OF_GRANT, runs, ranges=ranges)
    )


def peek_message(peeked: Peeked) -> pb.PeekPrefixResponse:
    """Returns what would match as a message."""
    tiers = [
        pb.TierPages(tier=types_pb2.Tier.Name(tier), page_count=count)
        for tier, count in peeked.tiers
    ]
    return pb.PeekPrefixResponse(
        matched_token_count=peeked.matched_token_count,
        tiers=tiers,
        source_token_count=peeked.source_token_count,
        tier_3_token_count=peeked.tier_3_token_count,
        in_flight=None if peeked.in_flight is None else _in_flight_message(peeked.in_flight),
    )


def identity_message(identity: NamespaceIdentity) -> types_pb2.NamespaceIdentity:
    """Returns a namespace's identity, without the salt, which may be a secret."""
    return types_pb2.NamespaceIdentity(
        model_digest=identity.model_digest,
        adapter_digest=identity.adapter_digest,
        display_name=identity.display_name,
    )


def layout_message(layout: PageLayout) -> types_pb2.PageLayout:
    """Returns a page layout as a message."""
    message = types_pb2.PageLayout(
        page_tokens=layout.page_tokens,
        page_bytes=layout.page_bytes,
        tensor_parallel_size=layout.tensor_parallel_size,
    )
    content = layout.content
    if isinstance(content, PagedContent):
        message.paged.layer_count = content.layer_count
        message.paged.kv_head_count = content.kv_head_count
        message.paged.head_dim = content.head_dim
        message.paged.dtype = content.dtype
        message.paged.kv_factor = content.kv_factor
    else:
        message.opaque.fingerprint = content.fingerprint
        message.opaque.divides_by_token = content.divides_by_token
    return message
