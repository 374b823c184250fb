from google.rpc import status_pb2 as _status_pb2
from kvstore.v1 import types_pb2 as _types_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClientFrame(_message.Message):
    __slots__ = ("hello", "bind", "acknowledge", "unmapped", "open_lane")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    BIND_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    UNMAPPED_FIELD_NUMBER: _ClassVar[int]
    OPEN_LANE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    bind: Bind
    acknowledge: Acknowledge
    unmapped: Unmapped
    open_lane: OpenLane
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., bind: _Optional[_Union[Bind, _Mapping]] = ..., acknowledge: _Optional[_Union[Acknowledge, _Mapping]] = ..., unmapped: _Optional[_Union[Unmapped, _Mapping]] = ..., open_lane: _Optional[_Union[OpenLane, _Mapping]] = ...) -> None: ...

class ServerFrame(_message.Message):
    __slots__ = ("welcome", "bound", "extents", "acknowledged", "retire", "refused", "lane_opened", "renew")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    RETIRE_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    LANE_OPENED_FIELD_NUMBER: _ClassVar[int]
    RENEW_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    bound: Bound
    extents: Extents
    acknowledged: Acknowledged
    retire: Retire
    refused: _status_pb2.Status
    lane_opened: LaneOpened
    renew: Renew
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., bound: _Optional[_Union[Bound, _Mapping]] = ..., extents: _Optional[_Union[Extents, _Mapping]] = ..., acknowledged: _Optional[_Union[Acknowledged, _Mapping]] = ..., retire: _Optional[_Union[Retire, _Mapping]] = ..., refused: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., lane_opened: _Optional[_Union[LaneOpened, _Mapping]] = ..., renew: _Optional[_Union[Renew, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol_version", "display_name", "cuda_mps", "replaces", "knows_renew")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    DISPLAY_NAME_FIELD_NUMBER: _ClassVar[int]
    CUDA_MPS_FIELD_NUMBER: _ClassVar[int]
    REPLACES_FIELD_NUMBER: _ClassVar[int]
    KNOWS_RENEW_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    display_name: str
    cuda_mps: bool
    replaces: bool
    knows_renew: bool
    def __init__(self, protocol_version: _Optional[int] = ..., display_name: _Optional[str] = ..., cuda_mps: _Optional[bool] = ..., replaces: _Optional[bool] = ..., knows_renew: _Optional[bool] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("credential", "tenant", "admin", "store_epoch", "outlives")
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    ADMIN_FIELD_NUMBER: _ClassVar[int]
    STORE_EPOCH_FIELD_NUMBER: _ClassVar[int]
    OUTLIVES_FIELD_NUMBER: _ClassVar[int]
    credential: str
    tenant: str
    admin: bool
    store_epoch: int
    outlives: bool
    def __init__(self, credential: _Optional[str] = ..., tenant: _Optional[str] = ..., admin: _Optional[bool] = ..., store_epoch: _Optional[int] = ..., outlives: _Optional[bool] = ...) -> None: ...

class Bind(_message.Message):
    __slots__ = ("lease_id", "lease_secret", "mapped")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    MAPPED_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    lease_secret: bytes
    mapped: _containers.RepeatedCompositeFieldContainer[MappedExtent]
    def __init__(self, lease_id: _Optional[bytes] = ..., lease_secret: _Optional[bytes] = ..., mapped: _Optional[_Iterable[_Union[MappedExtent, _Mapping]]] = ...) -> None: ...

class MappedExtent(_message.Message):
    __slots__ = ("extent_id", "device", "inode", "size_bytes")
    EXTENT_ID_FIELD_NUMBER: _ClassVar[int]
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    INODE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    extent_id: int
    device: int
    inode: int
    size_bytes: int
    def __init__(self, extent_id: _Optional[int] = ..., device: _Optional[int] = ..., inode: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class Bound(_message.Message):
    __slots__ = ("pid", "kept_extent_ids")
    PID_FIELD_NUMBER: _ClassVar[int]
    KEPT_EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    pid: int
    kept_extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, pid: _Optional[int] = ..., kept_extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Extents(_message.Message):
    __slots__ = ("extents",)
    EXTENTS_FIELD_NUMBER: _ClassVar[int]
    extents: _containers.RepeatedCompositeFieldContainer[_types_pb2.Extent]
    def __init__(self, extents: _Optional[_Iterable[_Union[_types_pb2.Extent, _Mapping]]] = ...) -> None: ...

class Acknowledge(_message.Message):
    __slots__ = ("extent_ids",)
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Acknowledged(_message.Message):
    __slots__ = ("extent_ids",)
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Retire(_message.Message):
    __slots__ = ("extent_ids",)
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Unmapped(_message.Message):
    __slots__ = ("extent_ids",)
    EXTENT_IDS_FIELD_NUMBER: _ClassVar[int]
    extent_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, extent_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class Renew(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class OpenLane(_message.Message):
    __slots__ = ("lease_id", "lease_secret")
    LEASE_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECRET_FIELD_NUMBER: _ClassVar[int]
    lease_id: bytes
    lease_secret: bytes
    def __init__(self, lease_id: _Optional[bytes] = ..., lease_secret: _Optional[bytes] = ...) -> None: ...

class LaneOpened(_message.Message):
    __slots__ = ("methods",)
    METHODS_FIELD_NUMBER: _ClassVar[int]
    methods: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, methods: _Optional[_Iterable[str]] = ...) -> None: ...

class LaneCall(_message.Message):
    __slots__ = ("method", "timeout_us", "request_id")
    METHOD_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_US_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    method: int
    timeout_us: int
    request_id: str
    def __init__(self, method: _Optional[int] = ..., timeout_us: _Optional[int] = ..., request_id: _Optional[str] = ...) -> None: ...

class LaneAnswer(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: _status_pb2.Status
    def __init__(self, status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...
