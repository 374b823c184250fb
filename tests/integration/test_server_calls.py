"""Calls to a whole server process: answers, refusals, and secrets that it keeps."""

import random
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from kvstore.rpc.server import SERVICES
from kvstore.v1 import (
    lease_pb2,
    named_pin_pb2,
    prefix_cache_pb2,
    store_pb2,
)
from kvstore_client.testing import RunningStore
from stores.rpc_world import refusal_of
from wire.attached_worker import PAGE_TOKENS, AttachedWorker, Refused

LIMIT = 30.0
# More than any call may take.
TOO_LONG = 1e5
METHODS: list[MethodDescriptor] = [
    method
    for file in (lease_pb2, prefix_cache_pb2, named_pin_pb2, store_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]
pytestmark = pytest.mark.store("--log-level", "debug", "--tier1-bytes", "1MiB")


@pytest.fixture
def worker(store: RunningStore) -> Iterator[AttachedWorker]:
    """Provides an attached worker with a lease, which ends with the test."""
    worker = AttachedWorker(store.runtime_dir)
    worker.grant()
    worker.bind()
    yield worker
    worker.revoke()
    worker.close()


def call(
    channel: grpc.Channel,
    method: MethodDescriptor,
    body: bytes,
    *,
    timeout: float | None = LIMIT,
    metadata: tuple[tuple[str, str | bytes], ...] = (),
) -> bytes:
    """Returns the bytes of a method's first answer. Raises Refused."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.server_streaming:
            stream: grpc.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
            answers = stream(body, timeout=timeout, metadata=metadata)
            first = next(answers)
            answers.cancel()
            return first
        unary: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
        return unary(body, timeout=timeout, metadata=metadata)
    except grpc.RpcError as error:
        raise refusal_of(error) from error


def state_of(worker: AttachedWorker) -> dict[str, Any]:
    """Returns the store's statistics without those that change by time and by asking."""
    stats = worker.ask(worker.store.GetStats, store_pb2.GetStatsRequest())
    changing = ("uptime", "age", "since_renewal", "oldest_hold_age", "request_count")
    for each in (stats, *stats.namespaces, *stats.leases, *stats.tenants):
        for name in changing:
            if name in each.DESCRIPTOR.fields_by_name:
                each.ClearField(name)
    return {field.name: str(value) for field, value in stats.ListFields()}


def test_a_tool_can_call_with_descriptors_from_reflection_alone(
    store: RunningStore, worker: AttachedWorker
) -> None:
    """A tool can list the services and call them with descriptors from reflection, like grpcurl."""
    with grpc.insecure_channel(f"unix:{store.runtime_dir / 'kvstore.sock'}") as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        health, reflection = "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"
        assert set(database.get_services()) == {*SERVICES, health, reflection}
        pool = DescriptorPool(database)
        service = pool.FindServiceByName("kvstore.v1.StoreService")
        method = service.methods_by_name["GetCapabilities"]
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        body = request().SerializeToString()
        answer: Any = response.FromString(call(channel, method, body, metadata=worker.metadata))
        assert answer.store_epoch == worker.epoch
        assert answer.limits.max_tokens > 0
        names = {each.name for name in SERVICES for each in pool.FindServiceByName(name).methods}
        assert names == {each.name for each in METHODS}


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_needs_a_credential_and_a_deadline(
    worker: AttachedWorker, method: MethodDescriptor
) -> None:
    """Every method needs a known credential and a deadline."""
    for metadata in ((), (("authorization", "Bearer x"),), worker.metadata[1:]):
        with pytest.raises(Refused) as caught:
            call(worker.channel, method, b"", metadata=metadata)
        assert caught.value.code is grpc.StatusCode.UNAUTHENTICATED
        assert caught.value.reason == "CREDENTIAL_REQUIRED"
    for timeout in (None, TOO_LONG):
        with pytest.raises(Refused) as caught:
            call(worker.channel, method, b"", timeout=timeout, metadata=worker.metadata)
        assert (caught.value.reason, caught.value.metadata["field"]) == (
            "INVALID_FIELD",
            "deadline",
        )


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_noise_is_answered_with_a_reason_and_changes_nothing(
    store: RunningStore, worker: AttachedWorker, method: MethodDescriptor
) -> None:
    """Random bytes and truncated messages are refused with a reason, and change nothing."""
    chance = random.Random(method.full_name)
    whole = lease_pb2.GrantLeaseRequest(lease_id=bytes(16), display_name="x").SerializeToString()
    bodies = [b"", whole[:-1], b"\xff" * 64]
    bodies += [chance.randbytes(chance.randrange(1, 64)) for _ in range(50)]
    before = state_of(worker)
    reasons = set()
    for body in bodies:
        try:
            call(worker.channel, method, body, metadata=worker.metadata)
        except Refused as refused:
            reasons.add(refused.reason)
    assert reasons <= {
        "INVALID_FIELD",
        "LIMIT_EXCEEDED",
        "NAMESPACE_NOT_FOUND",
        "STALE_EPOCH",
    }
    assert "INVALID_FIELD" in reasons
    assert state_of(worker) == before
    assert "request_failed" not in store.log


def test_a_method_that_never_was_is_unimplemented(worker: AttachedWorker) -> None:
    """An unknown method ends with gRPC's UNIMPLEMENTED."""
    method: grpc.UnaryUnaryMultiCallable[bytes, bytes]
    method = worker.channel.unary_unary("/kvstore.v2.StoreService/GetStats")
    with pytest.raises(grpc.RpcError) as caught:
        method(b"", timeout=LIMIT)
    assert isinstance(caught.value, grpc.Call)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_bad_input_leaves_everything_as_it_was(worker: AttachedWorker) -> None:
    """Each bad input is refused by its reason, and the statistics stay the same."""
    namespace_id = worker.open_namespace()
    worker.reserve(namespace_id, 1, 2)
    worker.insert(1, bytes(16))
    pb = prefix_cache_pb2
    caller, service = worker.caller(), worker.prefix_cache
    base: dict[str, Any] = {"caller": caller, "namespace_id": namespace_id}
    long = bytes(4 * ((1 << 20) + 1))
    huge = [pb.ReservationRequest(reservation_id=9, page_count=2**32 - 1)]
    twice = [pb.ReservationRequest(reservation_id=9, page_count=1)] * 2
    moved = [pb.ReservationRequest(reservation_id=1, start_page=1, page_count=1)]
    match, reserve, insert = service.MatchPrefix, service.ReservePages, service.InsertPrefix
    ragged = pb.Sequence(tokens=bytes(7))
    refused = [
        ("INVALID_FIELD", match, pb.MatchPrefixRequest(pin_id=2, sequence=ragged, **base)),
        (
            "LIMIT_EXCEEDED",
            match,
            pb.MatchPrefixRequest(pin_id=2, sequence=pb.Sequence(tokens=long), **base),
        ),
        ("LIMIT_EXCEEDED", reserve, pb.ReservePagesRequest(reservations=huge, **base)),
        ("INVALID_FIELD", reserve, pb.ReservePagesRequest(reservations=twice, **base)),
        ("ID_REUSED", reserve, pb.ReservePagesRequest(reservations=moved, **base)),
        (
            "INSERT_EXCEEDS_RESERVATION",
            insert,
            pb.InsertPrefixRequest(
                caller=caller, reservation_id=1, sequence=pb.Sequence(tokens=bytes(48))
            ),
        ),
        (
            "ID_REUSED",
            insert,
            pb.InsertPrefixRequest(
                caller=caller, reservation_id=1, sequence=pb.Sequence(tokens=b"other to".ljust(16))
            ),
        ),
        (
            "RESERVATION_NOT_FOUND",
            insert,
            pb.InsertPrefixRequest(caller=caller, reservation_id=7, sequence=pb.Sequence()),
        ),
        (
            "LIMIT_EXCEEDED",
            service.ReleasePins,
            pb.ReleasePinsRequest(caller=caller, pin_ids=range(1, 2000)),
        ),
        (
            "INVALID_FIELD",
            worker.store.EvictPrefix,
            store_pb2.EvictPrefixRequest(namespace_id=namespace_id, tokens=bytes(4)),
        ),
    ]
    before = state_of(worker)
    for reason, method, request in refused:
        with pytest.raises(Refused) as caught:
            worker.ask(method, request)
        assert caught.value.reason == reason
        assert state_of(worker) == before


def test_the_log_holds_no_tokens(store: RunningStore, worker: AttachedWorker) -> None:
    """At debug, with errors and all, no token id is logged, in whatever form it could be."""
    number = 0x5EC12E75
    tokens = number.to_bytes(4, "little") * PAGE_TOKENS
    namespace_id = worker.open_namespace()
    worker.reserve(namespace_id, 1, 1)
    worker.insert(1, tokens)
    pb = prefix_cache_pb2
    request = pb.MatchPrefixRequest(
        caller=worker.caller(),
        namespace_id=namespace_id,
        pin_id=3,
        sequence=pb.Sequence(tokens=tokens * 2),
    )
    worker.ask(worker.prefix_cache.MatchPrefix, request)
    request.sequence.tokens, request.pin_id = tokens[:-1], 4
    with pytest.raises(Refused):
        worker.ask(worker.prefix_cache.MatchPrefix, request)
    log = store.log
    outcomes = re.findall(r"method=\S+/MatchPrefix reason=(\S+)", log)
    assert outcomes[-2:] == ["OK", "INVALID_FIELD"]
    forms = [str(number), f"{number:x}", tokens[:4].hex(), str(tokens[:3])[2:-1]]
    forms.append(b64encode(tokens)[:12].decode())
    assert [form for form in forms if form.lower() in log.lower()] == []
