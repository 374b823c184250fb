import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GrantLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "ttl", "display_name", "features")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    ttl: _duration_pb2.Duration
    display_name: str
    features: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lease_id: _Optional[bytes] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., display_name: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ...) -> None: ...

class GrantLeaseResponse(_message.Message):
    __slots__ = ("ttl", "store_epoch")
    TTL_FIELD_NUMBER: _ClassVar[int]
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ttl: _duration_pb2.Duration
    store_epoch: int
    def __init__(self, ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., store_epoch: _Optional[int] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "store_epoch")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    store_epoch: int
    def __init__(self, lease_id: _Optional[bytes] = ..., store_epoch: _Optional[int] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("ttl",)
    TTL_FIELD_NUMBER: _ClassVar[int]
    ttl: _duration_pb2.Duration
    def __init__(self, ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class RevokeLeaseRequest(_message.Message):
    __slots__ = ("lease_id", "store_epoch")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    store_epoch: int
    def __init__(self, lease_id: _Optional[bytes] = ..., store_epoch: _Optional[int] = ...) -> None: ...

class RevokeLeaseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListLeasesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListLeasesResponse(_message.Message):
    __slots__ = ("leases", "next_page_token")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[LeaseInfo]
    next_page_token: str
    def __init__(self, leases: _Optional[_Iterable[_Union[LeaseInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ListHoldsRequest(_message.Message):
    __slots__ = ("lease_id", "tenant", "page_size", "page_token")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    tenant: str
    page_size: int
    page_token: str
    def __init__(self, lease_id: _Optional[bytes] = ..., tenant: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListHoldsResponse(_message.Message):
    __slots__ = ("holds", "next_page_token")
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    holds: _containers.RepeatedCompositeFieldContainer[HoldInfo]
    next_page_token: str
    def __init__(self, holds: _Optional[_Iterable[_Union[HoldInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class HoldInfo(_message.Message):
    __slots__ = ("kind", "hold_id", "namespace_id", "page_count", "token_count", "detached_page_count", "slot_count", "age", "announced_token_count")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[HoldInfo.Kind]
        KIND_PIN: _ClassVar[HoldInfo.Kind]
        KIND_SOURCE: _ClassVar[HoldInfo.Kind]
        KIND_RESERVATION: _ClassVar[HoldInfo.Kind]
    KIND_UNSPECIFIED: HoldInfo.Kind
    KIND_PIN: HoldInfo.Kind
    KIND_SOURCE: HoldInfo.Kind
    KIND_RESERVATION: HoldInfo.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    HOLD_ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETACHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    ANNOUNCED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    kind: HoldInfo.Kind
    hold_id: int
    namespace_id: bytes
    page_count: int
    token_count: int
    detached_page_count: int
    slot_count: int
    age: _duration_pb2.Duration
    announced_token_count: int
    def __init__(self, kind: _Optional[_Union[HoldInfo.Kind, str]] = ..., hold_id: _Optional[int] = ..., namespace_id: _Optional[bytes] = ..., page_count: _Optional[int] = ..., token_count: _Optional[int] = ..., detached_page_count: _Optional[int] = ..., slot_count: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., announced_token_count: _Optional[int] = ...) -> None: ...

class LeaseInfo(_message.Message):
    __slots__ = ("lease_id", "display_name", "tenant", "state", "age", "since_renewal", "processes", "pin_count", "reservation_count", "reserved_slot_count", "quarantined_slot_count", "pinned_page_count", "oldest_hold_age", "counters", "detached_page_count", "oldest_quarantine_age", "in_flight_count")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[LeaseInfo.State]
        STATE_ACTIVE: _ClassVar[LeaseInfo.State]
        STATE_EXPIRED: _ClassVar[LeaseInfo.State]
    STATE_UNSPECIFIED: LeaseInfo.State
    STATE_ACTIVE: LeaseInfo.State
    STATE_EXPIRED: LeaseInfo.State
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    SINCE_RENEWAL_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    PINNED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_HOLD_AGE_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    DETACHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_QUARANTINE_AGE_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_COUNT_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    display_name: str
    tenant: str
    state: LeaseInfo.State
    age: _duration_pb2.Duration
    since_renewal: _duration_pb2.Duration
    processes: _containers.RepeatedCompositeFieldContainer[ProcessInfo]
    pin_count: int
    reservation_count: int
    reserved_slot_count: int
    quarantined_slot_count: int
    pinned_page_count: int
    oldest_hold_age: _duration_pb2.Duration
    counters: CacheCounters
    detached_page_count: int
    oldest_quarantine_age: _duration_pb2.Duration
    in_flight_count: int
    def __init__(self, lease_id: _Optional[bytes] = ..., display_name: _Optional[str] = ..., tenant: _Optional[str] = ..., state: _Optional[_Union[LeaseInfo.State, str]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., since_renewal: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., processes: _Optional[_Iterable[_Union[ProcessInfo, _Mapping]]] = ..., pin_count: _Optional[int] = ..., reservation_count: _Optional[int] = ..., reserved_slot_count: _Optional[int] = ..., quarantined_slot_count: _Optional[int] = ..., pinned_page_count: _Optional[int] = ..., oldest_hold_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., counters: _Optional[_Union[CacheCounters, _Mapping]] = ..., detached_page_count: _Optional[int] = ..., oldest_quarantine_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., in_flight_count: _Optional[int] = ...) -> None: ...

class ProcessInfo(_message.Message):
    __slots__ = ("pid", "uid", "connected", "mapped_extent_count")
    PID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    MAPPED_EXTENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    pid: int
    uid: int
    connected: bool
    mapped_extent_count: int
    def __init__(self, pid: _Optional[int] = ..., uid: _Optional[int] = ..., connected: _Optional[bool] = ..., mapped_extent_count: _Optional[int] = ...) -> None: ...

class CacheCounters(_message.Message):
    __slots__ = ("lookup_count", "full_hit_count", "partial_hit_count", "miss_count", "asked_token_count", "matched_token_count", "inserted_page_count", "duplicate_page_count", "evicted_page_count", "removed_page_count", "exhausted_count", "copied_token_count", "next_token_count", "superseded_page_count", "verified_page_count", "corrupt_page_count", "returned_page_count", "demoted_page_count", "promoted_page_count", "loaded_page_count", "yielded_count", "timed_token_count", "saved_prefill_us")
    LOOKUP_COUNT_FIELD_NUMBER: _ClassVar[int]
    FULL_HIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_HIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISS_COUNT_FIELD_NUMBER: _ClassVar[int]
    ASKED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    MATCHED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    INSERTED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVICTED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXHAUSTED_COUNT_FIELD_NUMBER: _ClassVar[int]
    COPIED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    NEXT_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SUPERSEDED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    VERIFIED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETURNED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DEMOTED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROMOTED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOADED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    YIELDED_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVED_PREFILL_US_FIELD_NUMBER: _ClassVar[int]
    lookup_count: int
    full_hit_count: int
    partial_hit_count: int
    miss_count: int
    asked_token_count: int
    matched_token_count: int
    inserted_page_count: int
    duplicate_page_count: int
    evicted_page_count: int
    removed_page_count: int
    exhausted_count: int
    copied_token_count: int
    next_token_count: int
    superseded_page_count: int
    verified_page_count: int
    corrupt_page_count: int
    returned_page_count: int
    demoted_page_count: int
    promoted_page_count: int
    loaded_page_count: int
    yielded_count: int
    timed_token_count: int
    saved_prefill_us: int
    def __init__(self, lookup_count: _Optional[int] = ..., full_hit_count: _Optional[int] = ..., partial_hit_count: _Optional[int] = ..., miss_count: _Optional[int] = ..., asked_token_count: _Optional[int] = ..., matched_token_count: _Optional[int] = ..., inserted_page_count: _Optional[int] = ..., duplicate_page_count: _Optional[int] = ..., evicted_page_count: _Optional[int] = ..., removed_page_count: _Optional[int] = ..., exhausted_count: _Optional[int] = ..., copied_token_count: _Optional[int] = ..., next_token_count: _Optional[int] = ..., superseded_page_count: _Optional[int] = ..., verified_page_count: _Optional[int] = ..., corrupt_page_count: _Optional[int] = ..., returned_page_count: _Optional[int] = ..., demoted_page_count: _Optional[int] = ..., promoted_page_count: _Optional[int] = ..., loaded_page_count: _Optional[int] = ..., yielded_count: _Optional[int] = ..., timed_token_count: _Optional[int] = ..., saved_prefill_us: _Optional[int] = ...) -> None: ...
