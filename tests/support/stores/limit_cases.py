"""For each limit of GetCapabilities, a call whose size is what the limit bounds."""

from collections.abc import Callable

import grpc

from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller
from kvstore.errors import KVStoreError
from kvstore.rpc.pipeline import digest_of
from kvstore.v1 import lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2
from stores.rpc_world import PAGE_TOKENS, Refused, Worker, watch

pb = prefix_cache_pb2
LIMITS = Limits(
    max_tokens=32,
    max_batch_size=3,
    max_message_bytes=4096,
    max_short_message_bytes=1024,
    max_page_bytes=128,
    max_page_tokens=8,
    max_name_bytes=20,
    max_digest_bytes=30,
    max_salt_bytes=10,
    max_features=2,
    max_namespaces=2,
    max_holds_per_lease=3,
    max_processes_per_lease=4,
    max_deadline=50.0,
    max_watch=70.0,
    max_watchers=2,
    max_held_group_pages=2,
)
Case = Callable[[Worker, int], object]


def raw(worker: Worker, method: str, length: int) -> object:
    """Calls a method with a request of so many bytes, which mean nothing."""
    head = bytes([0xC2, 0x3E])  # field 1000, of bytes
    for size in (1, 2, 3):
        body = length - len(head) - size
        prefix = _varint(body)
        if len(prefix) == size:
            break
    channel = worker.server.channel
    call = channel.unary_unary(method, request_serializer=bytes, response_deserializer=bytes)
    request = head + prefix + bytes(body)
    assert len(request) == length
    return worker.ask(call, request)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def max_tokens(worker: Worker, size: int) -> object:
    """Peek so many tokens."""
    request = pb.PeekPrefixRequest(namespace_id=worker.open_namespace(), tokens=bytes(4 * size))
    return worker.ask(worker.prefix_cache.PeekPrefix, request)


def max_batch_size(worker: Worker, size: int) -> object:
    """Releases so many pins."""
    request = pb.ReleasePinsRequest(caller=worker.caller(), pin_ids=range(1, size + 1))
    return worker.ask(worker.prefix_cache.ReleasePins, request)


def max_message_bytes(worker: Worker, size: int) -> object:
    """Sends a message of so many bytes; gRPC itself refuses one that is longer."""
    try:
        return raw(worker, "/kvstore.v1.PrefixCacheService/PeekPrefix", size)
    except Refused as refused:
        # The padding is no namespace: as far as that the message came.
        return refused.metadata["field"]
    except AssertionError as error:
        if "larger than max" not in str(error):
            raise
        raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "", {}, []) from error


def max_short_message_bytes(worker: Worker, size: int) -> object:
    """Sends a request without token ids of so many bytes."""
    return raw(worker, "/kvstore.v1.LeaseService/ListLeases", size)


def max_deadline(worker: Worker, size: int) -> object:
    """Calls with a deadline of so many seconds, and what gRPC's rounding takes more."""
    authorization = ("authorization", f"Bearer {worker.server.credentials.issue(worker.uid)}")
    timeout = size + (0 if size == LIMITS.max_deadline else 1)
    call = worker.store.GetStats
    return worker.server.call(
        lambda request, **_: call(request, timeout=timeout, metadata=(authorization,)),
        store_pb2.GetStatsRequest(),
    )


def max_watch(worker: Worker, size: int) -> object:
    """Watches for so many seconds, and what gRPC's rounding takes more."""
    timeout = size + (0 if size == LIMITS.max_watch else 2)
    return watch(worker, timeout=timeout).cancel()


def max_watchers(worker: Worker, size: int) -> object:
    """Watches with so many calls."""
    return [watch(worker) for _ in range(size)]


def max_namespaces(worker: Worker, size: int) -> object:
    """Opens so many namespaces."""
    for number in range(size):
        request = worker.open_request()
        request.identity.salt = b"%d" % number
        worker.ask(worker.store.OpenNamespace, request)
    return None


def max_holds_per_lease(worker: Worker, size: int) -> object:
    """Makes so many reservations."""
    namespace_id = worker.open_namespace()
    for number in range(1, size + 1):
        reservation = pb.ReservationRequest(reservation_id=number, page_count=1)
        request = pb.ReservePagesRequest(
            caller=worker.caller(), namespace_id=namespace_id, reservations=[reservation]
        )
        worker.ask(worker.prefix_cache.ReservePages, request)
    return None


def max_held_group_pages(worker: Worker, size: int) -> object:
    """Inserts a page, and pages of so many groups beside it."""
    namespace_id, caller = worker.open_namespace(), worker.caller()
    spare = pb.ReservationRequest(reservation_id=1, page_count=size + 1)
    request = pb.ReservePagesRequest(caller=caller, namespace_id=namespace_id, reservations=[spare])
    worker.ask(worker.prefix_cache.ReservePages, request)
    insert = pb.InsertPrefixRequest(
        caller=caller,
        reservation_id=2,
        sequence={"tokens": bytes(4 * PAGE_TOKENS)},
        slots_reservation_id=1,
        slot_offsets=[0],
        group_pages=[
            {"group": number, "page_positions": [0], "slot_offsets": [number]}
            for number in range(1, size + 1)
        ],
    )
    return worker.ask(worker.prefix_cache.InsertPrefix, insert)


def max_processes_per_lease(worker: Worker, size: int) -> object:
    """Attaches so many processes, of which the worker has one."""
    identity = worker.server.credentials.identity_of(worker.uid)
    caller = Caller(identity, worker.lease_id, digest_of(worker.secret), None)
    try:
        for number in range(1, size):
            worker.server.store.bind(caller, process_id=100 + number, pid=1, uid=worker.uid)
    except KVStoreError as error:
        code = grpc.StatusCode.RESOURCE_EXHAUSTED
        raise Refused(code, error.reason(), error.metadata, []) from error
    return None


def max_page_bytes(worker: Worker, size: int) -> object:
    """Opens a namespace with pages of so many bytes."""
    request = worker.open_request()
    request.layout.page_bytes = size
    return worker.ask(worker.store.OpenNamespace, request)


def max_page_tokens(worker: Worker, size: int) -> object:
    """Opens a namespace with pages of so many tokens."""
    request = worker.open_request()
    request.layout.page_tokens = size
    return worker.ask(worker.store.OpenNamespace, request)


def max_name_bytes(worker: Worker, size: int) -> object:
    """Unpin by a name of so many bytes."""
    request = named_pin_pb2.UnpinPrefixRequest(
        namespace_id=worker.open_namespace(), name="é" * (size // 2) + "x" * (size % 2)
    )
    return worker.ask(worker.named_pin.UnpinPrefix, request)


def max_digest_bytes(worker: Worker, size: int) -> object:
    """Opens a namespace of a model whose digest has so many bytes."""
    request = worker.open_request()
    request.identity.model_digest = bytes(size)
    return worker.ask(worker.store.OpenNamespace, request)


def max_salt_bytes(worker: Worker, size: int) -> object:
    """Opens a namespace with a salt of so many bytes."""
    request = worker.open_request()
    request.identity.salt = bytes(size)
    return worker.ask(worker.store.OpenNamespace, request)


def max_features(worker: Worker, size: int) -> object:
    """Grants a lease that has so many features."""
    request = lease_pb2.GrantLeaseRequest(lease_id=worker.lease_id, features=["f"] * size)
    return worker.ask(worker.lease.GrantLease, request)


CASES: dict[str, tuple[Case, str]] = {
    each.__name__: (each, reason)
    for reason, cases in {
        "": [max_message_bytes],
        "INVALID_FIELD": [
            max_deadline,
            max_watch,
            max_name_bytes,
            max_digest_bytes,
            max_salt_bytes,
        ],
        "LIMIT_EXCEEDED": [
            max_tokens,
            max_batch_size,
            max_short_message_bytes,
            max_page_bytes,
            max_page_tokens,
            max_features,
        ],
        "QUOTA_EXCEEDED": [
            max_namespaces,
            max_holds_per_lease,
            max_held_group_pages,
            max_processes_per_lease,
            max_watchers,
        ],
    }.items()
    for each in cases
}
