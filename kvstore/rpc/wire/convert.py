"""Messages of the request path to core's types and back, fields checked.

A conversion from a message raises InvalidField, LimitExceeded or
FeatureUnsupported, all before the store is asked anything.
"""

from array import array
from math import inf

from kvstore.core import (
    ExpectedReuse,
    Grant,
    GroupInsert,
    GroupWindow,
    InFlight,
    Limits,
    Match,
    MatchOptions,
    NamespaceIdentity,
    PageLayout,
    Peeked,
    ReservationRequest,
    ReuseHint,
    Sequence,
    SlotMoves,
)
from kvstore.core.values.layout import OpaqueContent, PagedContent
from kvstore.core.values.runs import Run
from kvstore.errors import FeatureUnsupported, InvalidField, LimitExceeded
from kvstore.rpc.wire import fields
from kvstore.v1 import prefix_cache_pb2 as pb
from kvstore.v1 import types_pb2

KEYS_AND_VALUES = 2
# What the wire has room for.
MAX_IDLE_MS = (1 << 32) - 1
EXPECTATIONS = {int(each): each for each in ExpectedReuse}


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


def require_no_base(sequence: Sequence) -> None:
    """Raises InvalidField for a sequence that names a hold, in a call without a lease."""
    named = sequence.base_pin_id, sequence.base_reservation_id
    if sequence.position or named != (None, None):
        why = "a call without a lease has no base: send all tokens"
        raise InvalidField(field="sequence.base", why=why)


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


def windows_of(
    message: pb.MatchPrefixRequest | pb.PeekPrefixRequest, limits: Limits
) -> tuple[GroupWindow, ...]:
    """Returns the windows of the KV cache groups that a match needs."""
    fields.require_batch(message.groups, limits)
    return tuple(GroupWindow(each.group, each.page_count) for each in message.groups)


def group_options_of(message: pb.MatchPrefixRequest, limits: Limits) -> MatchOptions:
    """Returns how a match is asked for, with its KV cache groups."""
    options = options_of(message)
    if message.is_base:
        options = options._replace(is_base=True)
    if not message.groups:
        return options
    return options._replace(
        groups=windows_of(message, limits), group_start_page=message.group_start_page
    )


def moves_of(message: pb.InsertPrefixRequest, limits: Limits) -> SlotMoves | None:
    """Returns the slots that an insert takes from another reservation, or None."""
    if not message.slots_reservation_id:
        if message.slot_offsets or message.group_pages:
            fields.missing_id("slots_reservation_id")
        return None
    fields.require_batch(message.group_pages, limits)
    groups = [
        GroupInsert(
            each.group,
            tuple(each.page_positions),
            tuple(each.slot_offsets),
            tuple(each.page_checksums),
        )
        for each in message.group_pages
    ]
    return SlotMoves(message.slots_reservation_id, tuple(message.slot_offsets), groups)


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


def fill_match(message: pb.PrefixMatch, match: Match, caller: pb.Caller) -> None:
    """Writes a match into an answer's empty message, in the form that its caller understands."""
    # An empty match is present too.
    message.SetInParent()
    message.matched_token_count = match.matched_token_count
    for run in match.runs:
        fill_run(message.runs.add(), run, caller)
    if match.source is not None:
        message.source.source_pin_id = match.source.pin_id
        message.source.valid_token_count = match.source.valid_token_count
        fill_run(message.source.page, match.source.page, caller)
    if match.next_token is not None:
        message.next_token = match.next_token
    message.tier_3_token_count = match.tier_3_token_count
    message.tier_3_loaded_token_count = match.tier_3_loaded_token_count
    message.remote_loaded_token_count = match.remote_loaded_token_count
    if match.in_flight is not None:
        message.in_flight.CopyFrom(_in_flight_message(match.in_flight))
    for held in match.groups:
        group = message.groups.add(group=held.group, start_page=held.start_page)
        for run in held.runs:
            fill_run(group.runs.add(), run, caller)


def fill_grant(message: pb.ReservationGrant, grant: Grant, caller: pb.Caller) -> None:
    """Writes a grant into an answer's empty message, in the form that its caller understands."""
    message.reservation_id = grant.reservation_id
    message.start_page = grant.start_page
    for run in grant.runs:
        fill_run(message.runs.add(), run, caller)


def fill_run(message: types_pb2.PageRun, run: Run, caller: pb.Caller) -> None:
    """Writes a run into an answer's empty message, in the form that its caller understands.

    6,249 slots cost some microseconds if they are packed or a range. As the repeated fields of
    older clients they cost half a millisecond and more.
    """
    message.extent_id, tier, indexes, generations = run
    # The numbers of the tiers are the same on both sides.
    message.tier = tier  # type: ignore[assignment]  # stubs know members alone
    count = len(indexes)
    if count > 1 and caller.slot_ranges and isinstance(indexes, range):
        message.slot_count = count
        indexes = indexes[:1]
        if generations == generations[:1] * count:
            generations = generations[:1]
    if caller.packed_slots:
        message.packed_slot_indexes = array("I", indexes).tobytes()
        message.packed_generations = generations.tobytes()
    else:
        message.slot_indexes.extend(indexes)
        message.generations.extend(generations)


def _in_flight_message(in_flight: InFlight) -> pb.InFlight:
    return pb.InFlight(
        token_count=in_flight.token_count,
        inserted_token_count=in_flight.inserted_token_count,
        idle_ms=min(int(in_flight.idle * 1000), MAX_IDLE_MS),
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
