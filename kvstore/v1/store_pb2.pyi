import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from kvstore.v1 import lease_pb2 as _lease_pb2
from kvstore.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetCapabilitiesRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapabilitiesResponse(_message.Message):
    __slots__ = ("store_epoch", "server_version", "features", "limits", "extents", "attach_path", "quotas", "prefix_cache_backend")
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    SERVER_VERSION_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    ATTACH_PATH_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_CACHE_BACKEND_FIELD_NUMBER: _ClassVar[int]
    store_epoch: int
    server_version: str
    features: _containers.RepeatedScalarFieldContainer[str]
    limits: Limits
    extents: _containers.RepeatedCompositeFieldContainer[_types_pb2.Extent]
    attach_path: str
    quotas: Quotas
    prefix_cache_backend: str
    def __init__(self, store_epoch: _Optional[int] = ..., server_version: _Optional[str] = ..., features: _Optional[_Iterable[str]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., extents: _Optional[_Iterable[_Union[_types_pb2.Extent, _Mapping]]] = ..., attach_path: _Optional[str] = ..., quotas: _Optional[_Union[Quotas, _Mapping]] = ..., prefix_cache_backend: _Optional[str] = ...) -> None: ...

class Quotas(_message.Message):
    __slots__ = ("tier1_bytes", "share_bytes", "leases", "pins", "named_pins", "requests_per_second")
    TIER1_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHARE_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    PINS_FIELD_NUMBER: _ClassVar[int]
    NAMED_PINS_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    tier1_bytes: int
    share_bytes: int
    leases: int
    pins: int
    named_pins: int
    requests_per_second: float
    def __init__(self, tier1_bytes: _Optional[int] = ..., share_bytes: _Optional[int] = ..., leases: _Optional[int] = ..., pins: _Optional[int] = ..., named_pins: _Optional[int] = ..., requests_per_second: _Optional[float] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("max_tokens", "max_batch_size", "max_message_bytes", "min_ttl", "max_ttl", "max_deadline", "max_namespaces", "max_holds_per_lease", "max_processes_per_lease", "max_short_message_bytes", "max_page_bytes", "max_page_tokens", "max_name_bytes", "max_digest_bytes", "max_salt_bytes", "max_features", "max_tombstones", "max_announced_bytes", "max_watch", "max_watchers", "max_held_group_pages", "max_prefetch_bytes")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_BATCH_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MIN_TTL_FIELD_NUMBER: _ClassVar[int]
    MAX_TTL_FIELD_NUMBER: _ClassVar[int]
    MAX_DEADLINE_FIELD_NUMBER: _ClassVar[int]
    MAX_NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    MAX_HOLDS_PER_LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_PROCESSES_PER_LEASE_FIELD_NUMBER: _ClassVar[int]
    MAX_SHORT_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_NAME_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_DIGEST_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_SALT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_TOMBSTONES_FIELD_NUMBER: _ClassVar[int]
    MAX_ANNOUNCED_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_WATCH_FIELD_NUMBER: _ClassVar[int]
    MAX_WATCHERS_FIELD_NUMBER: _ClassVar[int]
    MAX_HELD_GROUP_PAGES_FIELD_NUMBER: _ClassVar[int]
    MAX_PREFETCH_BYTES_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    max_batch_size: int
    max_message_bytes: int
    min_ttl: _duration_pb2.Duration
    max_ttl: _duration_pb2.Duration
    max_deadline: _duration_pb2.Duration
    max_namespaces: int
    max_holds_per_lease: int
    max_processes_per_lease: int
    max_short_message_bytes: int
    max_page_bytes: int
    max_page_tokens: int
    max_name_bytes: int
    max_digest_bytes: int
    max_salt_bytes: int
    max_features: int
    max_tombstones: int
    max_announced_bytes: int
    max_watch: _duration_pb2.Duration
    max_watchers: int
    max_held_group_pages: int
    max_prefetch_bytes: int
    def __init__(self, max_tokens: _Optional[int] = ..., max_batch_size: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., min_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_deadline: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_namespaces: _Optional[int] = ..., max_holds_per_lease: _Optional[int] = ..., max_processes_per_lease: _Optional[int] = ..., max_short_message_bytes: _Optional[int] = ..., max_page_bytes: _Optional[int] = ..., max_page_tokens: _Optional[int] = ..., max_name_bytes: _Optional[int] = ..., max_digest_bytes: _Optional[int] = ..., max_salt_bytes: _Optional[int] = ..., max_features: _Optional[int] = ..., max_tombstones: _Optional[int] = ..., max_announced_bytes: _Optional[int] = ..., max_watch: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_watchers: _Optional[int] = ..., max_held_group_pages: _Optional[int] = ..., max_prefetch_bytes: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("store_epoch", "uptime", "counters", "arenas", "namespaces", "leases", "pin_count", "reservation_count", "expired_lease_count", "named_pin_count", "tenants", "quarantined_slot_count", "detached_page_count", "oldest_quarantine_age", "tier_3", "in_flight_count", "tier_budgets", "succession", "remote", "kv_events")
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    ARENAS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    LEASES_FIELD_NUMBER: _ClassVar[int]
    PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESERVATION_COUNT_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_LEASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMED_PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TENANTS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETACHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    OLDEST_QUARANTINE_AGE_FIELD_NUMBER: _ClassVar[int]
    TIER_3_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIER_BUDGETS_FIELD_NUMBER: _ClassVar[int]
    SUCCESSION_FIELD_NUMBER: _ClassVar[int]
    REMOTE_FIELD_NUMBER: _ClassVar[int]
    KV_EVENTS_FIELD_NUMBER: _ClassVar[int]
    store_epoch: int
    uptime: _duration_pb2.Duration
    counters: _lease_pb2.CacheCounters
    arenas: _containers.RepeatedCompositeFieldContainer[ArenaStats]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceInfo]
    leases: _containers.RepeatedCompositeFieldContainer[_lease_pb2.LeaseInfo]
    pin_count: int
    reservation_count: int
    expired_lease_count: int
    named_pin_count: int
    tenants: _containers.RepeatedCompositeFieldContainer[TenantStats]
    quarantined_slot_count: int
    detached_page_count: int
    oldest_quarantine_age: _duration_pb2.Duration
    tier_3: Tier3Stats
    in_flight_count: int
    tier_budgets: _containers.RepeatedCompositeFieldContainer[TierBudget]
    succession: SuccessionStats
    remote: RemoteStats
    kv_events: _containers.RepeatedCompositeFieldContainer[KvEventStats]
    def __init__(self, store_epoch: _Optional[int] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., counters: _Optional[_Union[_lease_pb2.CacheCounters, _Mapping]] = ..., arenas: _Optional[_Iterable[_Union[ArenaStats, _Mapping]]] = ..., namespaces: _Optional[_Iterable[_Union[NamespaceInfo, _Mapping]]] = ..., leases: _Optional[_Iterable[_Union[_lease_pb2.LeaseInfo, _Mapping]]] = ..., pin_count: _Optional[int] = ..., reservation_count: _Optional[int] = ..., expired_lease_count: _Optional[int] = ..., named_pin_count: _Optional[int] = ..., tenants: _Optional[_Iterable[_Union[TenantStats, _Mapping]]] = ..., quarantined_slot_count: _Optional[int] = ..., detached_page_count: _Optional[int] = ..., oldest_quarantine_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., tier_3: _Optional[_Union[Tier3Stats, _Mapping]] = ..., in_flight_count: _Optional[int] = ..., tier_budgets: _Optional[_Iterable[_Union[TierBudget, _Mapping]]] = ..., succession: _Optional[_Union[SuccessionStats, _Mapping]] = ..., remote: _Optional[_Union[RemoteStats, _Mapping]] = ..., kv_events: _Optional[_Iterable[_Union[KvEventStats, _Mapping]]] = ...) -> None: ...

class KvEventStats(_message.Message):
    __slots__ = ("tenant", "endpoint", "replay_endpoint", "last_batch_number", "batch_count", "stored_copy_count", "removed_copy_count", "lost_change_count", "snapshot_count", "replay_count")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    LAST_BATCH_NUMBER_FIELD_NUMBER: _ClassVar[int]
    BATCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    STORED_COPY_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_COPY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_CHANGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    REPLAY_COUNT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    endpoint: str
    replay_endpoint: str
    last_batch_number: int
    batch_count: int
    stored_copy_count: int
    removed_copy_count: int
    lost_change_count: int
    snapshot_count: int
    replay_count: int
    def __init__(self, tenant: _Optional[str] = ..., endpoint: _Optional[str] = ..., replay_endpoint: _Optional[str] = ..., last_batch_number: _Optional[int] = ..., batch_count: _Optional[int] = ..., stored_copy_count: _Optional[int] = ..., removed_copy_count: _Optional[int] = ..., lost_change_count: _Optional[int] = ..., snapshot_count: _Optional[int] = ..., replay_count: _Optional[int] = ...) -> None: ...

class SuccessionStats(_message.Message):
    __slots__ = ("state", "holder", "behind_count", "journal_used_bytes", "journal_size_bytes", "failure_reason", "recovered_page_count", "clean_start_reason", "instance")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[SuccessionStats.State]
        STATE_OFF: _ClassVar[SuccessionStats.State]
        STATE_KEPT: _ClassVar[SuccessionStats.State]
        STATE_BEHIND: _ClassVar[SuccessionStats.State]
        STATE_GIVEN_UP: _ClassVar[SuccessionStats.State]
    STATE_UNSPECIFIED: SuccessionStats.State
    STATE_OFF: SuccessionStats.State
    STATE_KEPT: SuccessionStats.State
    STATE_BEHIND: SuccessionStats.State
    STATE_GIVEN_UP: SuccessionStats.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    BEHIND_COUNT_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    JOURNAL_SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_REASON_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLEAN_START_REASON_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    state: SuccessionStats.State
    holder: str
    behind_count: int
    journal_used_bytes: int
    journal_size_bytes: int
    failure_reason: str
    recovered_page_count: int
    clean_start_reason: str
    instance: int
    def __init__(self, state: _Optional[_Union[SuccessionStats.State, str]] = ..., holder: _Optional[str] = ..., behind_count: _Optional[int] = ..., journal_used_bytes: _Optional[int] = ..., journal_size_bytes: _Optional[int] = ..., failure_reason: _Optional[str] = ..., recovered_page_count: _Optional[int] = ..., clean_start_reason: _Optional[str] = ..., instance: _Optional[int] = ...) -> None: ...

class TierBudget(_message.Message):
    __slots__ = ("tier", "size_bytes")
    TIER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    tier: _types_pb2.Tier
    size_bytes: int
    def __init__(self, tier: _Optional[_Union[_types_pb2.Tier, str]] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Tier3Stats(_message.Message):
    __slots__ = ("state", "size_bytes", "page_count", "slot_count", "written_page_count", "refused_page_count", "read_page_count", "corrupt_page_count", "unreadable_page_count", "evicted_page_count", "removed_page_count", "bytes_per_second", "declined_load_count", "recovered_page_count", "torn_slot_count")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[Tier3Stats.State]
        STATE_ABSENT: _ClassVar[Tier3Stats.State]
        STATE_OPEN: _ClassVar[Tier3Stats.State]
        STATE_FAILED: _ClassVar[Tier3Stats.State]
    STATE_UNSPECIFIED: Tier3Stats.State
    STATE_ABSENT: Tier3Stats.State
    STATE_OPEN: Tier3Stats.State
    STATE_FAILED: Tier3Stats.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CORRUPT_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    EVICTED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REMOVED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DECLINED_LOAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    RECOVERED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TORN_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    state: Tier3Stats.State
    size_bytes: int
    page_count: int
    slot_count: int
    written_page_count: int
    refused_page_count: int
    read_page_count: int
    corrupt_page_count: int
    unreadable_page_count: int
    evicted_page_count: int
    removed_page_count: int
    bytes_per_second: float
    declined_load_count: int
    recovered_page_count: int
    torn_slot_count: int
    def __init__(self, state: _Optional[_Union[Tier3Stats.State, str]] = ..., size_bytes: _Optional[int] = ..., page_count: _Optional[int] = ..., slot_count: _Optional[int] = ..., written_page_count: _Optional[int] = ..., refused_page_count: _Optional[int] = ..., read_page_count: _Optional[int] = ..., corrupt_page_count: _Optional[int] = ..., unreadable_page_count: _Optional[int] = ..., evicted_page_count: _Optional[int] = ..., removed_page_count: _Optional[int] = ..., bytes_per_second: _Optional[float] = ..., declined_load_count: _Optional[int] = ..., recovered_page_count: _Optional[int] = ..., torn_slot_count: _Optional[int] = ...) -> None: ...

class RemoteStats(_message.Message):
    __slots__ = ("state", "address", "reason", "key_id", "write_policy", "hit_look_count", "partial_look_count", "missed_look_count", "skipped_look_count", "failed_look_count", "look_time", "read_page_count", "read_byte_count", "read_time", "written_page_count", "written_byte_count", "refused_pages", "rejected_pages", "away_count", "lost_revision_count", "forged_revision_count", "pending_removal_count", "queued_byte_count", "clock_skew_seconds", "look_seconds", "writes_stopped", "findings", "bytes_per_second", "declined_load_count", "load_count", "late_load_count", "saved_prefill_time", "node_count", "nodes_away", "refreshed_pin_page_count", "absent_pin_page_count")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[RemoteStats.State]
        STATE_OPEN: _ClassVar[RemoteStats.State]
        STATE_AWAY: _ClassVar[RemoteStats.State]
        STATE_FAILED: _ClassVar[RemoteStats.State]
    STATE_UNSPECIFIED: RemoteStats.State
    STATE_OPEN: RemoteStats.State
    STATE_AWAY: RemoteStats.State
    STATE_FAILED: RemoteStats.State
    STATE_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    WRITE_POLICY_FIELD_NUMBER: _ClassVar[int]
    HIT_LOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_LOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    MISSED_LOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_LOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    FAILED_LOOK_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOOK_TIME_FIELD_NUMBER: _ClassVar[int]
    READ_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    READ_TIME_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_PAGES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_PAGES_FIELD_NUMBER: _ClassVar[int]
    AWAY_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOST_REVISION_COUNT_FIELD_NUMBER: _ClassVar[int]
    FORGED_REVISION_COUNT_FIELD_NUMBER: _ClassVar[int]
    PENDING_REMOVAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUEUED_BYTE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CLOCK_SKEW_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOOK_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WRITES_STOPPED_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    BYTES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    DECLINED_LOAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    LOAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    LATE_LOAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    SAVED_PREFILL_TIME_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODES_AWAY_FIELD_NUMBER: _ClassVar[int]
    REFRESHED_PIN_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    ABSENT_PIN_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    state: RemoteStats.State
    address: str
    reason: str
    key_id: bytes
    write_policy: str
    hit_look_count: int
    partial_look_count: int
    missed_look_count: int
    skipped_look_count: int
    failed_look_count: int
    look_time: _duration_pb2.Duration
    read_page_count: int
    read_byte_count: int
    read_time: _duration_pb2.Duration
    written_page_count: int
    written_byte_count: int
    refused_pages: _containers.RepeatedCompositeFieldContainer[ReasonCount]
    rejected_pages: _containers.RepeatedCompositeFieldContainer[ReasonCount]
    away_count: int
    lost_revision_count: int
    forged_revision_count: int
    pending_removal_count: int
    queued_byte_count: int
    clock_skew_seconds: float
    look_seconds: float
    writes_stopped: bool
    findings: _containers.RepeatedCompositeFieldContainer[EngineFinding]
    bytes_per_second: float
    declined_load_count: int
    load_count: int
    late_load_count: int
    saved_prefill_time: _duration_pb2.Duration
    node_count: int
    nodes_away: _containers.RepeatedScalarFieldContainer[str]
    refreshed_pin_page_count: int
    absent_pin_page_count: int
    def __init__(self, state: _Optional[_Union[RemoteStats.State, str]] = ..., address: _Optional[str] = ..., reason: _Optional[str] = ..., key_id: _Optional[bytes] = ..., write_policy: _Optional[str] = ..., hit_look_count: _Optional[int] = ..., partial_look_count: _Optional[int] = ..., missed_look_count: _Optional[int] = ..., skipped_look_count: _Optional[int] = ..., failed_look_count: _Optional[int] = ..., look_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., read_page_count: _Optional[int] = ..., read_byte_count: _Optional[int] = ..., read_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., written_page_count: _Optional[int] = ..., written_byte_count: _Optional[int] = ..., refused_pages: _Optional[_Iterable[_Union[ReasonCount, _Mapping]]] = ..., rejected_pages: _Optional[_Iterable[_Union[ReasonCount, _Mapping]]] = ..., away_count: _Optional[int] = ..., lost_revision_count: _Optional[int] = ..., forged_revision_count: _Optional[int] = ..., pending_removal_count: _Optional[int] = ..., queued_byte_count: _Optional[int] = ..., clock_skew_seconds: _Optional[float] = ..., look_seconds: _Optional[float] = ..., writes_stopped: _Optional[bool] = ..., findings: _Optional[_Iterable[_Union[EngineFinding, _Mapping]]] = ..., bytes_per_second: _Optional[float] = ..., declined_load_count: _Optional[int] = ..., load_count: _Optional[int] = ..., late_load_count: _Optional[int] = ..., saved_prefill_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., node_count: _Optional[int] = ..., nodes_away: _Optional[_Iterable[str]] = ..., refreshed_pin_page_count: _Optional[int] = ..., absent_pin_page_count: _Optional[int] = ...) -> None: ...

class ReasonCount(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class EngineFinding(_message.Message):
    __slots__ = ("kind", "setting", "value", "reason", "remedy")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[EngineFinding.Kind]
        KIND_PROMISE: _ClassVar[EngineFinding.Kind]
        KIND_HITS: _ClassVar[EngineFinding.Kind]
        KIND_UNKNOWN: _ClassVar[EngineFinding.Kind]
    KIND_UNSPECIFIED: EngineFinding.Kind
    KIND_PROMISE: EngineFinding.Kind
    KIND_HITS: EngineFinding.Kind
    KIND_UNKNOWN: EngineFinding.Kind
    KIND_FIELD_NUMBER: _ClassVar[int]
    SETTING_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    kind: EngineFinding.Kind
    setting: str
    value: str
    reason: str
    remedy: str
    def __init__(self, kind: _Optional[_Union[EngineFinding.Kind, str]] = ..., setting: _Optional[str] = ..., value: _Optional[str] = ..., reason: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...

class TenantStats(_message.Message):
    __slots__ = ("tenant", "quotas", "tier1_bytes", "lease_count", "pin_count", "named_pin_count", "request_count", "refused_request_count")
    TENANT_FIELD_NUMBER: _ClassVar[int]
    QUOTAS_FIELD_NUMBER: _ClassVar[int]
    TIER1_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEASE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    NAMED_PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    REFUSED_REQUEST_COUNT_FIELD_NUMBER: _ClassVar[int]
    tenant: str
    quotas: Quotas
    tier1_bytes: int
    lease_count: int
    pin_count: int
    named_pin_count: int
    request_count: int
    refused_request_count: int
    def __init__(self, tenant: _Optional[str] = ..., quotas: _Optional[_Union[Quotas, _Mapping]] = ..., tier1_bytes: _Optional[int] = ..., lease_count: _Optional[int] = ..., pin_count: _Optional[int] = ..., named_pin_count: _Optional[int] = ..., request_count: _Optional[int] = ..., refused_request_count: _Optional[int] = ...) -> None: ...

class ArenaStats(_message.Message):
    __slots__ = ("arena_id", "tenant", "tier", "slot_bytes", "extent_count", "slot_count", "free_slot_count", "reserved_slot_count", "cached_slot_count", "detached_slot_count", "moving_slot_count", "quarantined_slot_count", "retiring_extent_count")
    ARENA_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EXTENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    FREE_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    RESERVED_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    CACHED_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETACHED_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    MOVING_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    RETIRING_EXTENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    arena_id: int
    tenant: str
    tier: _types_pb2.Tier
    slot_bytes: int
    extent_count: int
    slot_count: int
    free_slot_count: int
    reserved_slot_count: int
    cached_slot_count: int
    detached_slot_count: int
    moving_slot_count: int
    quarantined_slot_count: int
    retiring_extent_count: int
    def __init__(self, arena_id: _Optional[int] = ..., tenant: _Optional[str] = ..., tier: _Optional[_Union[_types_pb2.Tier, str]] = ..., slot_bytes: _Optional[int] = ..., extent_count: _Optional[int] = ..., slot_count: _Optional[int] = ..., free_slot_count: _Optional[int] = ..., reserved_slot_count: _Optional[int] = ..., cached_slot_count: _Optional[int] = ..., detached_slot_count: _Optional[int] = ..., moving_slot_count: _Optional[int] = ..., quarantined_slot_count: _Optional[int] = ..., retiring_extent_count: _Optional[int] = ...) -> None: ...

class OpenNamespaceRequest(_message.Message):
    __slots__ = ("lease_id", "store_epoch", "identity", "layout")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    store_epoch: int
    identity: _types_pb2.NamespaceIdentity
    layout: _types_pb2.PageLayout
    def __init__(self, lease_id: _Optional[bytes] = ..., store_epoch: _Optional[int] = ..., identity: _Optional[_Union[_types_pb2.NamespaceIdentity, _Mapping]] = ..., layout: _Optional[_Union[_types_pb2.PageLayout, _Mapping]] = ...) -> None: ...

class OpenNamespaceResponse(_message.Message):
    __slots__ = ("namespace_id", "arena_id", "extent_ids")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    ARENA_ID_FIELD_NUMBER: _ClassVar[int]
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    arena_id: int
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, namespace_id: _Optional[bytes] = ..., arena_id: _Optional[int] = ..., extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class ListNamespacesRequest(_message.Message):
    __slots__ = ("page_size", "page_token")
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    page_size: int
    page_token: str
    def __init__(self, page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListNamespacesResponse(_message.Message):
    __slots__ = ("namespaces", "next_page_token")
    NAMESPACES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespaces: _containers.RepeatedCompositeFieldContainer[NamespaceInfo]
    next_page_token: str
    def __init__(self, namespaces: _Optional[_Iterable[_Union[NamespaceInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class NamespaceInfo(_message.Message):
    __slots__ = ("namespace_id", "tenant", "identity", "layout", "arena_id", "cached_page_count", "node_count", "detached_page_count", "pin_count", "counters", "age", "named_pin_count")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_FIELD_NUMBER: _ClassVar[int]
    LAYOUT_FIELD_NUMBER: _ClassVar[int]
    ARENA_ID_FIELD_NUMBER: _ClassVar[int]
    CACHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    NODE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETACHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    NAMED_PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    tenant: str
    identity: _types_pb2.NamespaceIdentity
    layout: _types_pb2.PageLayout
    arena_id: int
    cached_page_count: int
    node_count: int
    detached_page_count: int
    pin_count: int
    counters: _lease_pb2.CacheCounters
    age: _duration_pb2.Duration
    named_pin_count: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., tenant: _Optional[str] = ..., identity: _Optional[_Union[_types_pb2.NamespaceIdentity, _Mapping]] = ..., layout: _Optional[_Union[_types_pb2.PageLayout, _Mapping]] = ..., arena_id: _Optional[int] = ..., cached_page_count: _Optional[int] = ..., node_count: _Optional[int] = ..., detached_page_count: _Optional[int] = ..., pin_count: _Optional[int] = ..., counters: _Optional[_Union[_lease_pb2.CacheCounters, _Mapping]] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., named_pin_count: _Optional[int] = ...) -> None: ...

class DeleteNamespaceRequest(_message.Message):
    __slots__ = ("namespace_id",)
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    def __init__(self, namespace_id: _Optional[bytes] = ...) -> None: ...

class DeleteNamespaceResponse(_message.Message):
    __slots__ = ("evicted_page_count", "detached_page_count", "unsettled")
    EVICTED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETACHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    evicted_page_count: int
    detached_page_count: int
    unsettled: bool
    def __init__(self, evicted_page_count: _Optional[int] = ..., detached_page_count: _Optional[int] = ..., unsettled: _Optional[bool] = ...) -> None: ...

class ListPrefixesRequest(_message.Message):
    __slots__ = ("namespace_id", "page_size", "page_token", "max_tokens")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    page_size: int
    page_token: str
    max_tokens: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., max_tokens: _Optional[int] = ...) -> None: ...

class ListPrefixesResponse(_message.Message):
    __slots__ = ("prefixes", "next_page_token")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[PrefixInfo]
    next_page_token: str
    def __init__(self, prefixes: _Optional[_Iterable[_Union[PrefixInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class PrefixInfo(_message.Message):
    __slots__ = ("node_id", "parent_node_id", "start_page", "page_count", "child_count", "pin_count", "hit_count", "tokens", "token_count")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_NODE_ID_FIELD_NUMBER: _ClassVar[int]
    START_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    CHILD_COUNT_FIELD_NUMBER: _ClassVar[int]
    PIN_COUNT_FIELD_NUMBER: _ClassVar[int]
    HIT_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    parent_node_id: int
    start_page: int
    page_count: int
    child_count: int
    pin_count: int
    hit_count: int
    tokens: bytes
    token_count: int
    def __init__(self, node_id: _Optional[int] = ..., parent_node_id: _Optional[int] = ..., start_page: _Optional[int] = ..., page_count: _Optional[int] = ..., child_count: _Optional[int] = ..., pin_count: _Optional[int] = ..., hit_count: _Optional[int] = ..., tokens: _Optional[bytes] = ..., token_count: _Optional[int] = ...) -> None: ...

class EvictPrefixRequest(_message.Message):
    __slots__ = ("namespace_id", "tokens", "store_epoch")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    tokens: bytes
    store_epoch: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., store_epoch: _Optional[int] = ...) -> None: ...

class EvictPrefixResponse(_message.Message):
    __slots__ = ("evicted_page_count", "detached_page_count", "unsettled")
    EVICTED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    DETACHED_PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    UNSETTLED_FIELD_NUMBER: _ClassVar[int]
    evicted_page_count: int
    detached_page_count: int
    unsettled: bool
    def __init__(self, evicted_page_count: _Optional[int] = ..., detached_page_count: _Optional[int] = ..., unsettled: _Optional[bool] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("namespace_id", "history", "batches")
    class History(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        HISTORY_UNSPECIFIED: _ClassVar[WatchEventsRequest.History]
        HISTORY_FIRST: _ClassVar[WatchEventsRequest.History]
        HISTORY_ALONE: _ClassVar[WatchEventsRequest.History]
    HISTORY_UNSPECIFIED: WatchEventsRequest.History
    HISTORY_FIRST: WatchEventsRequest.History
    HISTORY_ALONE: WatchEventsRequest.History
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    HISTORY_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    history: WatchEventsRequest.History
    batches: bool
    def __init__(self, namespace_id: _Optional[bytes] = ..., history: _Optional[_Union[WatchEventsRequest.History, str]] = ..., batches: _Optional[bool] = ...) -> None: ...

class WatchEventsResponse(_message.Message):
    __slots__ = ("sequence_number", "lost_event_count", "uptime", "pages_inserted", "pages_removed", "lease_changed", "began", "pages_copied", "copies_removed", "namespace_changed", "batch", "tenant")
    SEQUENCE_NUMBER_FIELD_NUMBER: _ClassVar[int]
    LOST_EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    UPTIME_FIELD_NUMBER: _ClassVar[int]
    PAGES_INSERTED_FIELD_NUMBER: _ClassVar[int]
    PAGES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    LEASE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    PAGES_COPIED_FIELD_NUMBER: _ClassVar[int]
    COPIES_REMOVED_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_CHANGED_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    sequence_number: int
    lost_event_count: int
    uptime: _duration_pb2.Duration
    pages_inserted: PagesEvent
    pages_removed: PagesEvent
    lease_changed: LeaseEvent
    began: WatchBegan
    pages_copied: PagesEvent
    copies_removed: PagesEvent
    namespace_changed: NamespaceEvent
    batch: EventBatch
    tenant: str
    def __init__(self, sequence_number: _Optional[int] = ..., lost_event_count: _Optional[int] = ..., uptime: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., pages_inserted: _Optional[_Union[PagesEvent, _Mapping]] = ..., pages_removed: _Optional[_Union[PagesEvent, _Mapping]] = ..., lease_changed: _Optional[_Union[LeaseEvent, _Mapping]] = ..., began: _Optional[_Union[WatchBegan, _Mapping]] = ..., pages_copied: _Optional[_Union[PagesEvent, _Mapping]] = ..., copies_removed: _Optional[_Union[PagesEvent, _Mapping]] = ..., namespace_changed: _Optional[_Union[NamespaceEvent, _Mapping]] = ..., batch: _Optional[_Union[EventBatch, _Mapping]] = ..., tenant: _Optional[str] = ...) -> None: ...

class EventBatch(_message.Message):
    __slots__ = ("events",)
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[WatchEventsResponse]
    def __init__(self, events: _Optional[_Iterable[_Union[WatchEventsResponse, _Mapping]]] = ...) -> None: ...

class WatchBegan(_message.Message):
    __slots__ = ("store_epoch", "remembered_event_count")
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    REMEMBERED_EVENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    store_epoch: int
    remembered_event_count: int
    def __init__(self, store_epoch: _Optional[int] = ..., remembered_event_count: _Optional[int] = ...) -> None: ...

class PagesEvent(_message.Message):
    __slots__ = ("namespace_id", "start_page", "page_count", "tier", "path_digest", "cause")
    class Cause(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CAUSE_UNSPECIFIED: _ClassVar[PagesEvent.Cause]
        CAUSE_INSERTED: _ClassVar[PagesEvent.Cause]
        CAUSE_LOADED: _ClassVar[PagesEvent.Cause]
        CAUSE_MOVED: _ClassVar[PagesEvent.Cause]
        CAUSE_EVICTED: _ClassVar[PagesEvent.Cause]
        CAUSE_REMOVED: _ClassVar[PagesEvent.Cause]
        CAUSE_SUPERSEDED: _ClassVar[PagesEvent.Cause]
        CAUSE_CORRUPT: _ClassVar[PagesEvent.Cause]
        CAUSE_RETIRED: _ClassVar[PagesEvent.Cause]
        CAUSE_NAMESPACE_DELETED: _ClassVar[PagesEvent.Cause]
    CAUSE_UNSPECIFIED: PagesEvent.Cause
    CAUSE_INSERTED: PagesEvent.Cause
    CAUSE_LOADED: PagesEvent.Cause
    CAUSE_MOVED: PagesEvent.Cause
    CAUSE_EVICTED: PagesEvent.Cause
    CAUSE_REMOVED: PagesEvent.Cause
    CAUSE_SUPERSEDED: PagesEvent.Cause
    CAUSE_CORRUPT: PagesEvent.Cause
    CAUSE_RETIRED: PagesEvent.Cause
    CAUSE_NAMESPACE_DELETED: PagesEvent.Cause
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    START_PAGE_FIELD_NUMBER: _ClassVar[int]
    PAGE_COUNT_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    PATH_DIGEST_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    start_page: int
    page_count: int
    tier: _types_pb2.Tier
    path_digest: bytes
    cause: PagesEvent.Cause
    def __init__(self, namespace_id: _Optional[bytes] = ..., start_page: _Optional[int] = ..., page_count: _Optional[int] = ..., tier: _Optional[_Union[_types_pb2.Tier, str]] = ..., path_digest: _Optional[bytes] = ..., cause: _Optional[_Union[PagesEvent.Cause, str]] = ...) -> None: ...

class NamespaceEvent(_message.Message):
    __slots__ = ("namespace_id", "change")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHANGE_UNSPECIFIED: _ClassVar[NamespaceEvent.Change]
        CHANGE_OPENED: _ClassVar[NamespaceEvent.Change]
        CHANGE_DELETED: _ClassVar[NamespaceEvent.Change]
    CHANGE_UNSPECIFIED: NamespaceEvent.Change
    CHANGE_OPENED: NamespaceEvent.Change
    CHANGE_DELETED: NamespaceEvent.Change
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    change: NamespaceEvent.Change
    def __init__(self, namespace_id: _Optional[bytes] = ..., change: _Optional[_Union[NamespaceEvent.Change, str]] = ...) -> None: ...

class LeaseEvent(_message.Message):
    __slots__ = ("lease_id", "change", "display_name")
    class Change(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CHANGE_UNSPECIFIED: _ClassVar[LeaseEvent.Change]
        CHANGE_GRANTED: _ClassVar[LeaseEvent.Change]
        CHANGE_EXPIRED: _ClassVar[LeaseEvent.Change]
        CHANGE_ENDED: _ClassVar[LeaseEvent.Change]
    CHANGE_UNSPECIFIED: LeaseEvent.Change
    CHANGE_GRANTED: LeaseEvent.Change
    CHANGE_EXPIRED: LeaseEvent.Change
    CHANGE_ENDED: LeaseEvent.Change
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    CHANGE_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    change: LeaseEvent.Change
    display_name: str
    def __init__(self, lease_id: _Optional[bytes] = ..., change: _Optional[_Union[LeaseEvent.Change, str]] = ..., display_name: _Optional[str] = ...) -> None: ...
