import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PinPrefixRequest(_message.Message):
    __slots__ = ("namespace_id", "name", "tokens", "ttl", "require_all")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    REQUIRE_ALL_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    name: str
    tokens: bytes
    ttl: _duration_pb2.Duration
    require_all: bool
    def __init__(self, namespace_id: _Optional[bytes] = ..., name: _Optional[str] = ..., tokens: _Optional[bytes] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., require_all: _Optional[bool] = ...) -> None: ...

class PinPrefixResponse(_message.Message):
    __slots__ = ("pinned_token_count",)
    PINNED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    pinned_token_count: int
    def __init__(self, pinned_token_count: _Optional[int] = ...) -> None: ...

class UnpinPrefixRequest(_message.Message):
    __slots__ = ("namespace_id", "name")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    name: str
    def __init__(self, namespace_id: _Optional[bytes] = ..., name: _Optional[str] = ...) -> None: ...

class UnpinPrefixResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListPinsRequest(_message.Message):
    __slots__ = ("namespace_id", "page_size", "page_token")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    page_size: int
    page_token: str
    def __init__(self, namespace_id: _Optional[bytes] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ListPinsResponse(_message.Message):
    __slots__ = ("pins", "next_page_token")
    PINS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    pins: _containers.RepeatedCompositeFieldContainer[NamedPinInfo]
    next_page_token: str
    def __init__(self, pins: _Optional[_Iterable[_Union[NamedPinInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class NamedPinInfo(_message.Message):
    __slots__ = ("namespace_id", "name", "pinned_token_count", "age", "remaining", "remote_token_count")
    NAMESPACE_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PINNED_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    AGE_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    REMOTE_TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    namespace_id: bytes
    name: str
    pinned_token_count: int
    age: _duration_pb2.Duration
    remaining: _duration_pb2.Duration
    remote_token_count: int
    def __init__(self, namespace_id: _Optional[bytes] = ..., name: _Optional[str] = ..., pinned_token_count: _Optional[int] = ..., age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., remote_token_count: _Optional[int] = ...) -> None: ...
