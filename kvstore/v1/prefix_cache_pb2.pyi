from google.rpc import status_pb2 as _status_pb2
from kvstore.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Caller(_message.Message):
    __slots__ = ("lease_id", "store_epoch", "slot_ranges", "packed_slots")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SLOT_RANGES_FIELD_NUMBER: _ClassVar[int]
    PACKED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    store_epoch: int
    slot_ranges: bool
    packed_slots: bool
    def __init__(self, lease_id: _Optional[bytes] = ..., store_epoch: _Optional[int] = ..., slot_ranges: _Optional[bool] = ..., packed_slots: _Optional[bool] = ...) -> None: ...

class Sequence(_message.Message):
    __slots__ = ("tokens", "position", "base_pin_id", "base_reservation_id")
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    BASE_PIN_ID_FIELD_NUMBER: _ClassVar[int]
    BASE_RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    tokens: bytes
    position: int
    base_pin_id: int
    base_reservation_id: int
    def __init__(self, tokens: _Optional[bytes] = ..., position: _Optional[int] = ..., base_pin_id: _Optional[int] = ..., base_reservation_id: _Optional[int] = ...) -> None: ...

class MatchPrefixRequest(_message.Message):
    __slots__ = ("caller", "namespace_id", "sequence", "pin_id", "source_pin_id", "accept_next_token", "prefill_tokens_per_second", "groups", "group_start_page", "is_base")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PIN_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_START_PAGE_FIELD_NUMBER: _ClassVar[int]
    IS_BASE_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    namespace_id: bytes
    sequence: Sequence
    pin_id: int
    source_pin_id: int
    accept_next_token: bool
    prefill_tokens_per_second: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupWindow]
    group_start_page: int
    is_base: bool
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., namespace_id: _Optional[bytes] = ..., sequence: _Optional[_Union[Sequence, _Mapping]] = ..., pin_id: _Optional[int] = ..., source_pin_id: _Optional[int] = ..., accept_next_token: _Optional[bool] = ..., prefill_tokens_per_second: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupWindow, _Mapping]]] = ..., group_start_page: _Optional[int] = ..., is_base: _Optional[bool] = ...) -> None: ...

class GroupWindow(_message.Message):
    __slots__ = ("group", "page_count")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    group: int
    page_count: int
    def __init__(self, group: _Optional[int] = ..., page_count: _Optional[int] = ...) -> None: ...

class MatchPrefixResponse(_message.Message):
    __slots__ = ("match",)
    MATCH_FIELD_NUMBER: _ClassVar[int]
    match: PrefixMatch
    def __init__(self, match: _Optional[_Union[PrefixMatch, _Mapping]] = ...) -> None: ...

class PrefixMatch(_message.Message):
    __slots__ = ("matched_token_count", "runs", "source", "next_token", "tier_3_token_count", "in_flight", "groups", "tier_3_loaded_token_count", "remote_loaded_token_count")
    MATCHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TIER_3_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    TIER_3_LOADED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMOTE_LOADED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    matched_token_count: int
    runs: _containers.RepeatedCompositeFieldContainer[_types_pb2.PageRun]
    source: _types_pb2.SourcePage
    next_token: int
    tier_3_token_count: int
    in_flight: InFlight
    groups: _containers.RepeatedCompositeFieldContainer[GroupPages]
    tier_3_loaded_token_count: int
    remote_loaded_token_count: int
    def __init__(self, matched_token_count: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[_types_pb2.PageRun, _Mapping]]] = ..., source: _Optional[_Union[_types_pb2.SourcePage, _Mapping]] = ..., next_token: _Optional[int] = ..., tier_3_token_count: _Optional[int] = ..., in_flight: _Optional[_Union[InFlight, _Mapping]] = ..., groups: _Optional[_Iterable[_Union[GroupPages, _Mapping]]] = ..., tier_3_loaded_token_count: _Optional[int] = ..., remote_loaded_token_count: _Optional[int] = ...) -> None: ...

class GroupPages(_message.Message):
    __slots__ = ("group", "start_page", "runs")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    START_PAGE_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    group: int
    start_page: int
    runs: _containers.RepeatedCompositeFieldContainer[_types_pb2.PageRun]
    def __init__(self, group: _Optional[int] = ..., start_page: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[_types_pb2.PageRun, _Mapping]]] = ...) -> None: ...

class InFlight(_message.Message):
    __slots__ = ("token_count", "inserted_token_count", "idle_ms")
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    INSERTED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    token_count: int
    inserted_token_count: int
    idle_ms: int
    def __init__(self, token_count: _Optional[int] = ..., inserted_token_count: _Optional[int] = ..., idle_ms: _Optional[int] = ...) -> None: ...

class PrefetchPrefixRequest(_message.Message):
    __slots__ = ("caller", "namespace_id", "sequence", "may_evict")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MAY_EVICT_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    namespace_id: bytes
    sequence: Sequence
    may_evict: bool
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., namespace_id: _Optional[bytes] = ..., sequence: _Optional[_Union[Sequence, _Mapping]] = ..., may_evict: _Optional[bool] = ...) -> None: ...

class PrefetchPrefixResponse(_message.Message):
    __slots__ = ("memory_token_count", "loading_token_count", "declined_token_count", "remote_token_count")
    MEMORY_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOADING_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DECLINED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMOTE_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    memory_token_count: int
    loading_token_count: int
    declined_token_count: int
    remote_token_count: int
    def __init__(self, memory_token_count: _Optional[int] = ..., loading_token_count: _Optional[int] = ..., declined_token_count: _Optional[int] = ..., remote_token_count: _Optional[int] = ...) -> None: ...

class PeekPrefixRequest(_message.Message):
    __slots__ = ("namespace_id", "tokens", "groups", "group_start_page")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    GROUP_START_PAGE_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    tokens: bytes
    groups: _containers.RepeatedCompositeFieldContainer[GroupWindow]
    group_start_page: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., groups: _Optional[_Iterable[_Union[GroupWindow, _Mapping]]] = ..., group_start_page: _Optional[int] = ...) -> None: ...

class PeekPrefixResponse(_message.Message):
    __slots__ = ("matched_token_count", "tiers", "source_token_count", "tier_3_token_count", "in_flight")
    MATCHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIERS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIER_3_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    matched_token_count: int
    tiers: _containers.RepeatedCompositeFieldContainer[TierPages]
    source_token_count: int
    tier_3_token_count: int
    in_flight: InFlight
    def __init__(self, matched_token_count: _Optional[int] = ..., tiers: _Optional[_Iterable[_Union[TierPages, _Mapping]]] = ..., source_token_count: _Optional[int] = ..., tier_3_token_count: _Optional[int] = ..., in_flight: _Optional[_Union[InFlight, _Mapping]] = ...) -> None: ...

class TierPages(_message.Message):
    __slots__ = ("tier", "page_count")
    TIER_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    tier: _types_pb2.Tier
    page_count: int
    def __init__(self, tier: _Optional[_Union[_types_pb2.Tier, str]] = ..., page_count: _Optional[int] = ...) -> None: ...

class ReservePagesRequest(_message.Message):
    __slots__ = ("caller", "namespace_id", "reservations")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    namespace_id: bytes
    reservations: _containers.RepeatedCompositeFieldContainer[ReservationRequest]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., namespace_id: _Optional[bytes] = ..., reservations: _Optional[_Iterable[_Union[ReservationRequest, _Mapping]]] = ...) -> None: ...

class ReservationRequest(_message.Message):
    __slots__ = ("reservation_id", "start_page", "page_count")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    START_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    start_page: int
    page_count: int
    def __init__(self, reservation_id: _Optional[int] = ..., start_page: _Optional[int] = ..., page_count: _Optional[int] = ...) -> None: ...

class ReservePagesResponse(_message.Message):
    __slots__ = ("grants",)
    GRANTS_FIELD_NUMBER: _ClassVar[int]
    grants: _containers.RepeatedCompositeFieldContainer[ReservationGrant]
    def __init__(self, grants: _Optional[_Iterable[_Union[ReservationGrant, _Mapping]]] = ...) -> None: ...

class ReservationGrant(_message.Message):
    __slots__ = ("reservation_id", "runs", "start_page")
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    START_PAGE_FIELD_NUMBER: _ClassVar[int]
    reservation_id: int
    runs: _containers.RepeatedCompositeFieldContainer[_types_pb2.PageRun]
    start_page: int
    def __init__(self, reservation_id: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[_types_pb2.PageRun, _Mapping]]] = ..., start_page: _Optional[int] = ...) -> None: ...

class AcquirePrefixRequest(_message.Message):
    __slots__ = ("caller", "namespace_id", "sequence", "pin_id", "source_pin_id", "accept_next_token", "reservation_id", "total_page_count", "prefill_tokens_per_second", "yield_to_in_flight", "yield_idle_ms")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PIN_ID_FIELD_NUMBER: _ClassVar[int]
    SOURCE_PIN_ID_FIELD_NUMBER: _ClassVar[int]
    ACCEPT_NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    TOTAL_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PREFILL_TOKENS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    YIELD_TO_IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    YIELD_IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    namespace_id: bytes
    sequence: Sequence
    pin_id: int
    source_pin_id: int
    accept_next_token: bool
    reservation_id: int
    total_page_count: int
    prefill_tokens_per_second: int
    yield_to_in_flight: bool
    yield_idle_ms: int
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., namespace_id: _Optional[bytes] = ..., sequence: _Optional[_Union[Sequence, _Mapping]] = ..., pin_id: _Optional[int] = ..., source_pin_id: _Optional[int] = ..., accept_next_token: _Optional[bool] = ..., reservation_id: _Optional[int] = ..., total_page_count: _Optional[int] = ..., prefill_tokens_per_second: _Optional[int] = ..., yield_to_in_flight: _Optional[bool] = ..., yield_idle_ms: _Optional[int] = ...) -> None: ...

class AcquirePrefixResponse(_message.Message):
    __slots__ = ("match", "grant")
    MATCH_FIELD_NUMBER: _ClassVar[int]
    GRANT_FIELD_NUMBER: _ClassVar[int]
    match: PrefixMatch
    grant: ReservationGrant
    def __init__(self, match: _Optional[_Union[PrefixMatch, _Mapping]] = ..., grant: _Optional[_Union[ReservationGrant, _Mapping]] = ...) -> None: ...

class InsertPrefixRequest(_message.Message):
    __slots__ = ("caller", "reservation_id", "sequence", "next_token", "hint", "page_checksums", "slots_reservation_id", "slot_offsets", "group_pages")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HINT_FIELD_NUMBER: _ClassVar[int]
    PAGE_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_RESERVATION_ID_FIELD_NUMBER: _ClassVar[int]
    SLOT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    GROUP_PAGES_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    reservation_id: int
    sequence: Sequence
    next_token: int
    hint: _types_pb2.ReuseHint
    page_checksums: _containers.RepeatedScalarFieldContainer[int]
    slots_reservation_id: int
    slot_offsets: _containers.RepeatedScalarFieldContainer[int]
    group_pages: _containers.RepeatedCompositeFieldContainer[GroupInsert]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., reservation_id: _Optional[int] = ..., sequence: _Optional[_Union[Sequence, _Mapping]] = ..., next_token: _Optional[int] = ..., hint: _Optional[_Union[_types_pb2.ReuseHint, _Mapping]] = ..., page_checksums: _Optional[_Iterable[int]] = ..., slots_reservation_id: _Optional[int] = ..., slot_offsets: _Optional[_Iterable[int]] = ..., group_pages: _Optional[_Iterable[_Union[GroupInsert, _Mapping]]] = ...) -> None: ...

class GroupInsert(_message.Message):
    __slots__ = ("group", "page_positions", "slot_offsets", "page_checksums")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PAGE_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    SLOT_OFFSETS_FIELD_NUMBER: _ClassVar[int]
    PAGE_CHECKSUMS_FIELD_NUMBER: _ClassVar[int]
    group: int
    page_positions: _containers.RepeatedScalarFieldContainer[int]
    slot_offsets: _containers.RepeatedScalarFieldContainer[int]
    page_checksums: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[int] = ..., page_positions: _Optional[_Iterable[int]] = ..., slot_offsets: _Optional[_Iterable[int]] = ..., page_checksums: _Optional[_Iterable[int]] = ...) -> None: ...

class InsertPrefixResponse(_message.Message):
    __slots__ = ("runs", "published_page_count", "groups")
    RUNS_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    runs: _containers.RepeatedCompositeFieldContainer[_types_pb2.PageRun]
    published_page_count: int
    groups: _containers.RepeatedCompositeFieldContainer[GroupInserted]
    def __init__(self, runs: _Optional[_Iterable[_Union[_types_pb2.PageRun, _Mapping]]] = ..., published_page_count: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[GroupInserted, _Mapping]]] = ...) -> None: ...

class GroupInserted(_message.Message):
    __slots__ = ("group", "published_positions")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    PUBLISHED_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    group: int
    published_positions: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, group: _Optional[int] = ..., published_positions: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleasePinsRequest(_message.Message):
    __slots__ = ("caller", "pin_ids")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    PIN_IDS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    pin_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., pin_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ReleasePinsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class AbortReservationRequest(_message.Message):
    __slots__ = ("caller", "reservation_ids")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_IDS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    reservation_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., reservation_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class AbortReservationResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunStepRequest(_message.Message):
    __slots__ = ("caller", "namespace_id", "operations")
    CALLER_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    caller: Caller
    namespace_id: bytes
    operations: _containers.RepeatedCompositeFieldContainer[StepOperation]
    def __init__(self, caller: _Optional[_Union[Caller, _Mapping]] = ..., namespace_id: _Optional[bytes] = ..., operations: _Optional[_Iterable[_Union[StepOperation, _Mapping]]] = ...) -> None: ...

class StepOperation(_message.Message):
    __slots__ = ("acquire", "match", "reserve", "insert", "release", "abort", "prefetch")
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    acquire: AcquirePrefixRequest
    match: MatchPrefixRequest
    reserve: ReservePagesRequest
    insert: InsertPrefixRequest
    release: ReleasePinsRequest
    abort: AbortReservationRequest
    prefetch: PrefetchPrefixRequest
    def __init__(self, acquire: _Optional[_Union[AcquirePrefixRequest, _Mapping]] = ..., match: _Optional[_Union[MatchPrefixRequest, _Mapping]] = ..., reserve: _Optional[_Union[ReservePagesRequest, _Mapping]] = ..., insert: _Optional[_Union[InsertPrefixRequest, _Mapping]] = ..., release: _Optional[_Union[ReleasePinsRequest, _Mapping]] = ..., abort: _Optional[_Union[AbortReservationRequest, _Mapping]] = ..., prefetch: _Optional[_Union[PrefetchPrefixRequest, _Mapping]] = ...) -> None: ...

class RunStepResponse(_message.Message):
    __slots__ = ("results",)
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    results: _containers.RepeatedCompositeFieldContainer[StepResult]
    def __init__(self, results: _Optional[_Iterable[_Union[StepResult, _Mapping]]] = ...) -> None: ...

class StepResult(_message.Message):
    __slots__ = ("acquire", "match", "reserve", "insert", "release", "abort", "error", "prefetch")
    ACQUIRE_FIELD_NUMBER: _ClassVar[int]
    MATCH_FIELD_NUMBER: _ClassVar[int]
    RESERVE_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    PREFETCH_FIELD_NUMBER: _ClassVar[int]
    acquire: AcquirePrefixResponse
    match: MatchPrefixResponse
    reserve: ReservePagesResponse
    insert: InsertPrefixResponse
    release: ReleasePinsResponse
    abort: AbortReservationResponse
    error: _status_pb2.Status
    prefetch: PrefetchPrefixResponse
    def __init__(self, acquire: _Optional[_Union[AcquirePrefixResponse, _Mapping]] = ..., match: _Optional[_Union[MatchPrefixResponse, _Mapping]] = ..., reserve: _Optional[_Union[ReservePagesResponse, _Mapping]] = ..., insert: _Optional[_Union[InsertPrefixResponse, _Mapping]] = ..., release: _Optional[_Union[ReleasePinsResponse, _Mapping]] = ..., abort: _Optional[_Union[AbortReservationResponse, _Mapping]] = ..., error: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., prefetch: _Optional[_Union[PrefetchPrefixResponse, _Mapping]] = ...) -> None: ...
