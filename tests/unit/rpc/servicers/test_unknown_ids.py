"""An id of another tenant gets the same answer as an unknown id, in every call.

The calls come from the contract: a new call with a lease or namespace fails here until it is added.
"""

from collections.abc import Callable
from typing import Any

import pytest

from kvstore.v1 import lease_pb2, named_pin_pb2, prefix_cache_pb2, store_pb2
from stores.rpc_world import PAGE_TOKENS, Refused, Server, Worker, tokens

pb = prefix_cache_pb2
FILES = (lease_pb2, prefix_cache_pb2, named_pin_pb2, store_pb2)
PAGE = tokens(*range(PAGE_TOKENS))
STEP = [
    pb.StepOperation(match=pb.MatchPrefixRequest(sequence=pb.Sequence(tokens=PAGE), pin_id=1)),
    pb.StepOperation(insert={"reservation_id": 5, "sequence": {"tokens": PAGE}}),
    pb.StepOperation(release=pb.ReleasePinsRequest(pin_ids=[1])),
]


def methods(*names: str) -> set[str]:
    """Returns the calls whose requests have one of the named fields."""
    return {
        method.name
        for file in FILES
        for service in file.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if any(name in method.input_type.fields_by_name for name in names)
    }


def stub_of(worker: Worker, name: str) -> Any:  # noqa: ANN401 - stubs are untyped
    """Returns the stub of a call by its name."""
    stubs = (worker.lease, worker.prefix_cache, worker.named_pin, worker.store)
    return next(getattr(stub, name) for stub in stubs if hasattr(stub, name))


def outcome(worker: Worker, name: str, request: object, named: bytes) -> tuple[object, ...]:
    """Returns a call's outcome, without the id that it named."""
    call = stub_of(worker, name)

    def answers(request: object, **options: object) -> list[bytes]:
        given = call(request, **options)
        # A stream ends with its error once it is read.
        each = [given] if hasattr(given, "SerializeToString") else given
        # The results of a step name what its operations named.
        return [answer.SerializeToString().replace(named.hex().encode(), b"ID") for answer in each]

    try:
        return tuple(worker.ask(answers, request))
    except Refused as refused:
        said = str(refused.__cause__).replace(named.hex(), "ID")
        metadata = {
            key: value.replace(named.hex(), "ID") for key, value in refused.metadata.items()
        }
        return refused.code, refused.reason, metadata, refused.detail_types, "ID" in said


# In another namespace than the caller's own.
BY_NAMESPACE: dict[str, Callable[[Worker, bytes], object]] = {
    "MatchPrefix": lambda worker, space: pb.MatchPrefixRequest(
        caller=worker.caller(), namespace_id=space, sequence=pb.Sequence(tokens=PAGE), pin_id=1
    ),
    "PrefetchPrefix": lambda worker, space: pb.PrefetchPrefixRequest(
        caller=worker.caller(), namespace_id=space, sequence=pb.Sequence(tokens=PAGE)
    ),
    "PeekPrefix": lambda _, space: pb.PeekPrefixRequest(namespace_id=space, tokens=PAGE),
    "ReservePages": lambda worker, space: pb.ReservePagesRequest(
        caller=worker.caller(),
        namespace_id=space,
        reservations=[pb.ReservationRequest(reservation_id=7, page_count=1)],
    ),
    "AcquirePrefix": lambda worker, space: pb.AcquirePrefixRequest(
        caller=worker.caller(),
        namespace_id=space,
        sequence=pb.Sequence(tokens=PAGE),
        pin_id=1,
        reservation_id=7,
        total_page_count=1,
    ),
    "RunStep": lambda worker, space: pb.RunStepRequest(
        caller=worker.caller(), namespace_id=space, operations=STEP
    ),
    "PinPrefix": lambda _, space: named_pin_pb2.PinPrefixRequest(
        namespace_id=space, name="p", tokens=PAGE
    ),
    "UnpinPrefix": lambda _, space: named_pin_pb2.UnpinPrefixRequest(namespace_id=space, name="p"),
    "ListPins": lambda _, space: named_pin_pb2.ListPinsRequest(namespace_id=space),
    "DeleteNamespace": lambda _, space: store_pb2.DeleteNamespaceRequest(namespace_id=space),
    "ListPrefixes": lambda _, space: store_pb2.ListPrefixesRequest(namespace_id=space),
    "EvictPrefix": lambda _, space: store_pb2.EvictPrefixRequest(namespace_id=space, tokens=PAGE),
    "WatchEvents": lambda _, space: store_pb2.WatchEventsRequest(namespace_id=space),
}
# Under another lease than the caller's own.
BY_LEASE: dict[str, Callable[[pb.Caller], object]] = {
    "GrantLease": lambda caller: lease_pb2.GrantLeaseRequest(lease_id=caller.lease_id),
    "RenewLease": lambda caller: lease_pb2.RenewLeaseRequest(
        lease_id=caller.lease_id, store_epoch=caller.store_epoch
    ),
    "RevokeLease": lambda caller: lease_pb2.RevokeLeaseRequest(
        lease_id=caller.lease_id, store_epoch=caller.store_epoch
    ),
    "ListHolds": lambda caller: lease_pb2.ListHoldsRequest(lease_id=caller.lease_id),
    "OpenNamespace": lambda caller: store_pb2.OpenNamespaceRequest(
        lease_id=caller.lease_id, store_epoch=caller.store_epoch, identity={}, layout={}
    ),
    "MatchPrefix": lambda caller: pb.MatchPrefixRequest(
        caller=caller, namespace_id=bytes(16), sequence=pb.Sequence(tokens=PAGE), pin_id=1
    ),
    "ReservePages": lambda caller: pb.ReservePagesRequest(
        caller=caller,
        namespace_id=bytes(16),
        reservations=[pb.ReservationRequest(reservation_id=7, page_count=1)],
    ),
    "AcquirePrefix": lambda caller: pb.AcquirePrefixRequest(
        caller=caller,
        namespace_id=bytes(16),
        sequence=pb.Sequence(tokens=PAGE),
        pin_id=1,
        reservation_id=7,
        total_page_count=1,
    ),
    "PrefetchPrefix": lambda caller: pb.PrefetchPrefixRequest(
        caller=caller, namespace_id=bytes(16), sequence=pb.Sequence(tokens=PAGE)
    ),
    "InsertPrefix": lambda caller: pb.InsertPrefixRequest(
        caller=caller, reservation_id=5, sequence=pb.Sequence(tokens=PAGE)
    ),
    "ReleasePins": lambda caller: pb.ReleasePinsRequest(caller=caller, pin_ids=[1]),
    "AbortReservation": lambda caller: pb.AbortReservationRequest(
        caller=caller, reservation_ids=[5]
    ),
    "RunStep": lambda caller: pb.RunStepRequest(
        caller=caller, namespace_id=bytes(16), operations=STEP
    ),
}


def test_every_call_that_names_something_is_here() -> None:
    """Every call of the contract that names a lease or a namespace is tested here."""
    assert set(BY_NAMESPACE) == methods("namespace_id")
    assert set(BY_LEASE) == methods("lease_id", "caller")


@pytest.mark.parametrize("name", BY_NAMESPACE)
def test_a_namespace_of_another_tenant_is_an_unknown_one(server: Server, name: str) -> None:
    """A call gets the same answer for another tenant's namespace as for an unknown one."""
    owner, stranger = server.worker(uid=2), server.worker(uid=3)
    theirs, unknown = owner.open_namespace(), b"an unknown space"
    stranger.open_namespace()
    owner.publish(theirs, PAGE, 5)
    pin = named_pin_pb2.PinPrefixRequest(namespace_id=theirs, name="p", tokens=PAGE)
    owner.ask(owner.named_pin.PinPrefix, pin)
    request = BY_NAMESPACE[name]
    came = outcome(stranger, name, request(stranger, theirs), theirs)
    assert came == outcome(stranger, name, request(stranger, unknown), unknown)
    assert len(owner.ask(owner.named_pin.ListPins, named_pin_pb2.ListPinsRequest()).pins) == 1


@pytest.mark.parametrize("name", BY_LEASE)
def test_a_lease_of_another_tenant_is_an_unknown_one(server: Server, name: str) -> None:
    """A call gets the same answer for another tenant's lease as for an unknown one."""
    owner, stranger = server.worker(uid=2), server.worker(uid=3)
    owner.publish(owner.open_namespace(), PAGE, 5)
    request, unknown = BY_LEASE[name], pb.Caller(lease_id=b"an unknown lease")
    unknown.store_epoch = owner.epoch
    came = outcome(stranger, name, request(owner.caller()), owner.lease_id)
    assert came == outcome(stranger, name, request(unknown), unknown.lease_id)
    # And to its owner nothing happened.
    (lease,) = owner.ask(owner.lease.ListLeases, lease_pb2.ListLeasesRequest()).leases
    assert (lease.reservation_count, lease.state) == (1, lease_pb2.LeaseInfo.STATE_ACTIVE)
