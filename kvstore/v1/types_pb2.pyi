from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Tier(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TIER_UNSPECIFIED: _ClassVar[Tier]
    TIER_1: _ClassVar[Tier]
    TIER_2: _ClassVar[Tier]
    TIER_3: _ClassVar[Tier]

class ExpectedReuse(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EXPECTED_REUSE_UNSPECIFIED: _ClassVar[ExpectedReuse]
    EXPECTED_REUSE_CONTINUES: _ClassVar[ExpectedReuse]
    EXPECTED_REUSE_ONE_SHOT: _ClassVar[ExpectedReuse]
TIER_UNSPECIFIED: Tier
TIER_1: Tier
TIER_2: Tier
TIER_3: Tier
EXPECTED_REUSE_UNSPECIFIED: ExpectedReuse
EXPECTED_REUSE_CONTINUES: ExpectedReuse
EXPECTED_REUSE_ONE_SHOT: ExpectedReuse

class PageLayout(_message.Message):
    __slots__ = ("page_tokens", "page_bytes", "tensor_parallel_size", "paged", "opaque")
    PAGE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    TENSOR_PARALLEL_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGED_FIELD_NUMBER: _ClassVar[int]
    OPAQUE_FIELD_NUMBER: _ClassVar[int]
    page_tokens: int
    page_bytes: int
    tensor_parallel_size: int
    paged: PagedLayout
    opaque: OpaqueLayout
    def __init__(self, page_tokens: _Optional[int] = ..., page_bytes: _Optional[int] = ..., tensor_parallel_size: _Optional[int] = ..., paged: _Optional[_Union[PagedLayout, _Mapping]] = ..., opaque: _Optional[_Union[OpaqueLayout, _Mapping]] = ...) -> None: ...

class PagedLayout(_message.Message):
    __slots__ = ("layer_count", "kv_head_count", "head_dim", "dtype", "kv_factor")
    LAYER_COUNT_FIELD_NUMBER: _ClassVar[int]
    KV_HEAD_COUNT_FIELD_NUMBER: _ClassVar[int]
    HEAD_DIM_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    KV_FACTOR_FIELD_NUMBER: _ClassVar[int]
    layer_count: int
    kv_head_count: int
    head_dim: int
    dtype: str
    kv_factor: int
    def __init__(self, layer_count: _Optional[int] = ..., kv_head_count: _Optional[int] = ..., head_dim: _Optional[int] = ..., dtype: _Optional[str] = ..., kv_factor: _Optional[int] = ...) -> None: ...

class OpaqueLayout(_message.Message):
    __slots__ = ("fingerprint", "divides_by_token")
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    DIVIDES_BY_TOKEN_FIELD_NUMBER: _ClassVar[int]
    fingerprint: bytes
    divides_by_token: bool
    def __init__(self, fingerprint: _Optional[bytes] = ..., divides_by_token: _Optional[bool] = ...) -> None: ...

class NamespaceIdentity(_message.Message):
    __slots__ = ("model_digest", "adapter_digest", "salt", "display_name")
    MODEL_DIGEST_FIELD_NUMBER: _ClassVar[int]
    ADAPTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    SALT_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    model_digest: bytes
    adapter_digest: bytes
    salt: bytes
    display_name: str
    def __init__(self, model_digest: _Optional[bytes] = ..., adapter_digest: _Optional[bytes] = ..., salt: _Optional[bytes] = ..., display_name: _Optional[str] = ...) -> None: ...

class PageRun(_message.Message):
    __slots__ = ("extent_id", "tier", "slot_indexes", "generations", "slot_count", "packed_slot_indexes", "packed_generations")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SLOT_INDEXES_FIELD_NUMBER: _ClassVar[int]
    GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    PACKED_SLOT_INDEXES_FIELD_NUMBER: _ClassVar[int]
    PACKED_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    tier: Tier
    slot_indexes: _containers.RepeatedScalarFieldContainer[int]
    generations: _containers.RepeatedScalarFieldContainer[int]
    slot_count: int
    packed_slot_indexes: bytes
    packed_generations: bytes
    def __init__(self, extent_id: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., slot_indexes: _Optional[_Iterable[int]] = ..., generations: _Optional[_Iterable[int]] = ..., slot_count: _Optional[int] = ..., packed_slot_indexes: _Optional[bytes] = ..., packed_generations: _Optional[bytes] = ...) -> None: ...

class SourcePage(_message.Message):
    __slots__ = ("source_pin_id", "page", "valid_token_count")
    SOURCE_PIN_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    VALID_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    source_pin_id: int
    page: PageRun
    valid_token_count: int
    def __init__(self, source_pin_id: _Optional[int] = ..., page: _Optional[_Union[PageRun, _Mapping]] = ..., valid_token_count: _Optional[int] = ...) -> None: ...

class ReuseHint(_message.Message):
    __slots__ = ("expected_reuse", "horizon_ms", "priority")
    EXPECTED_REUSE_FIELD_NUMBER: _ClassVar[int]
    HORIZON_MS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    expected_reuse: ExpectedReuse
    horizon_ms: int
    priority: int
    def __init__(self, expected_reuse: _Optional[_Union[ExpectedReuse, str]] = ..., horizon_ms: _Optional[int] = ..., priority: _Optional[int] = ...) -> None: ...

class Extent(_message.Message):
    __slots__ = ("extent_id", "arena_id", "tier", "slot_count", "slot_bytes", "offset", "host", "cuda_ipc", "vmm_fd", "generation_table", "arena_offset")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    ARENA_ID_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    SLOT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SLOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    CUDA_IPC_FIELD_NUMBER: _ClassVar[int]
    VMM_FD_FIELD_NUMBER: _ClassVar[int]
    GENERATION_TABLE_FIELD_NUMBER: _ClassVar[int]
    ARENA_OFFSET_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    arena_id: int
    tier: Tier
    slot_count: int
    slot_bytes: int
    offset: int
    host: HostHandle
    cuda_ipc: CudaIpcHandle
    vmm_fd: VmmFdHandle
    generation_table: GenerationTable
    arena_offset: int
    def __init__(self, extent_id: _Optional[int] = ..., arena_id: _Optional[int] = ..., tier: _Optional[_Union[Tier, str]] = ..., slot_count: _Optional[int] = ..., slot_bytes: _Optional[int] = ..., offset: _Optional[int] = ..., host: _Optional[_Union[HostHandle, _Mapping]] = ..., cuda_ipc: _Optional[_Union[CudaIpcHandle, _Mapping]] = ..., vmm_fd: _Optional[_Union[VmmFdHandle, _Mapping]] = ..., generation_table: _Optional[_Union[GenerationTable, _Mapping]] = ..., arena_offset: _Optional[int] = ...) -> None: ...

class GenerationTable(_message.Message):
    __slots__ = ("descriptor_index", "size_bytes")
    DESCRIPTOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    descriptor_index: int
    size_bytes: int
    def __init__(self, descriptor_index: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class HostHandle(_message.Message):
    __slots__ = ("descriptor_index", "size_bytes")
    DESCRIPTOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    descriptor_index: int
    size_bytes: int
    def __init__(self, descriptor_index: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class CudaIpcHandle(_message.Message):
    __slots__ = ("ipc_handle", "device_uuid", "size_bytes")
    IPC_HANDLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    ipc_handle: bytes
    device_uuid: bytes
    size_bytes: int
    def __init__(self, ipc_handle: _Optional[bytes] = ..., device_uuid: _Optional[bytes] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class VmmFdHandle(_message.Message):
    __slots__ = ("descriptor_index", "device_uuid", "size_bytes")
    DESCRIPTOR_INDEX_FIELD_NUMBER: _ClassVar[int]
    DEVICE_UUID_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    descriptor_index: int
    device_uuid: bytes
    size_bytes: int
    def __init__(self, descriptor_index: _Optional[int] = ..., device_uuid: _Optional[bytes] = ..., size_bytes: _Optional[int] = ...) -> None: ...
