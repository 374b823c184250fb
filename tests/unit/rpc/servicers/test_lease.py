"""LeaseService over a real server."""

from collections.abc import Callable

import pytest
from google.protobuf.duration_pb2 import Duration

from kvstore.core.values.limits import Limits
from kvstore.v1 import lease_pb2 as pb
from stores.rpc_world import ADMIN_UID, EPOCH, Refused, Server

SHORT_TTLS = Limits(min_ttl=1.0, default_ttl=2.0, max_ttl=3.0)


@pytest.mark.parametrize(
    ("wanted", "granted"), [(None, 2.0), (0.5, 1.0), (2.5, 2.5), (99.0, 3.0), (0.0, 1.0)]
)
def test_a_ttl_is_advice(
    start_server: Callable[..., Server], wanted: float | None, granted: float
) -> None:
    """The store chooses a lease's TTL: its default, or the wanted one within its bounds."""
    worker = start_server(limits=SHORT_TTLS).worker()
    request = pb.GrantLeaseRequest(lease_id=worker.lease_id)
    if wanted is not None:
        request.ttl.FromNanoseconds(round(wanted * 1e9))
    answer = worker.ask(worker.lease.GrantLease, request)
    assert answer.ttl.ToTimedelta().total_seconds() == granted
    assert answer.store_epoch == EPOCH


@pytest.mark.parametrize(
    ("field", "request_", "secret"),
    [
        ("lease_id", pb.GrantLeaseRequest(lease_id=bytes(15)), bytes(16)),
        ("ttl", pb.GrantLeaseRequest(lease_id=bytes(16), ttl=Duration(seconds=-1)), bytes(16)),
        ("features", pb.GrantLeaseRequest(lease_id=bytes(16), features=["x" * 257]), bytes(16)),
        (
            "display_name",
            pb.GrantLeaseRequest(lease_id=bytes(16), display_name="x" * 257),
            bytes(16),
        ),
        ("kvstore-lease-secret-bin", pb.GrantLeaseRequest(lease_id=bytes(16)), bytes(15)),
        ("kvstore-lease-secret-bin", pb.GrantLeaseRequest(lease_id=bytes(16)), b""),
    ],
)
def test_a_grant_is_checked(
    server: Server, field: str, request_: pb.GrantLeaseRequest, secret: bytes
) -> None:
    """A bad grant is refused with the field's name, and no lease is made."""
    worker = server.worker()
    worker.secret = secret
    with pytest.raises(Refused) as caught:
        worker.ask(worker.lease.GrantLease, request_)
    assert (caught.value.reason, caught.value.metadata["field"]) == ("INVALID_FIELD", field)
    listed = worker.ask(worker.lease.ListLeases, pb.ListLeasesRequest())
    assert [each.lease_id for each in listed.leases] == [worker.lease_id]


def test_a_call_without_a_secret_is_refused(server: Server) -> None:
    """A call that names a lease is refused without the lease's secret."""
    worker = server.worker()
    request = pb.RenewLeaseRequest(lease_id=worker.lease_id, store_epoch=EPOCH)
    authorization = ("authorization", f"Bearer {server.credentials.issue(worker.uid)}")
    with pytest.raises(Refused) as caught:
        server.call(worker.lease.RenewLease, request, authorization)
    assert caught.value.metadata == {"field": "kvstore-lease-secret-bin", "why": "missing"}


def test_renewing_answers_the_ttl(server: Server) -> None:
    """A renewal answers the granted TTL, and is refused with another epoch."""
    worker = server.worker()
    request = pb.RenewLeaseRequest(lease_id=worker.lease_id, store_epoch=EPOCH)
    assert worker.ask(worker.lease.RenewLease, request).ttl == Duration(seconds=10)
    request.store_epoch = 1
    with pytest.raises(Refused) as caught:
        worker.ask(worker.lease.RenewLease, request)
    assert caught.value.reason == "STALE_EPOCH"


def test_revoking_ends_the_lease_and_can_be_repeated(server: Server) -> None:
    """Revoking a lease succeeds also twice, and a later grant of its id fails."""
    worker = server.worker()
    request = pb.RevokeLeaseRequest(lease_id=worker.lease_id, store_epoch=EPOCH)
    for _ in range(2):
        worker.ask(worker.lease.RevokeLease, request)
    assert not worker.ask(worker.lease.ListLeases, pb.ListLeasesRequest()).leases
    with pytest.raises(Refused) as caught:
        worker.grant()
    assert caught.value.reason == "TOMBSTONED"


def test_an_admin_expires_without_secret_and_others_do_not(server: Server) -> None:
    """An admin may expire a lease without its secret. Nobody else may."""
    worker, other = server.worker(), server.worker(uid=3)
    request = pb.RevokeLeaseRequest(lease_id=worker.lease_id)
    for uid, epoch, reason in ((2, EPOCH, "LEASE_NOT_FOUND"), (3, 0, "STALE_EPOCH")):
        request.store_epoch = epoch
        authorization = ("authorization", f"Bearer {server.credentials.issue(uid)}")
        with pytest.raises(Refused) as caught:
            server.call(other.lease.RevokeLease, request, authorization)
        assert caught.value.reason == reason
    # To another tenant the id is an unknown one, and so its revoke succeeds.
    unknown = pb.RevokeLeaseRequest(lease_id=worker.lease_id, store_epoch=EPOCH)
    other.ask(other.lease.RevokeLease, unknown)
    (lease,) = worker.ask(worker.lease.ListLeases, pb.ListLeasesRequest()).leases
    assert lease.state == pb.LeaseInfo.STATE_ACTIVE
    authorization = ("authorization", f"Bearer {server.credentials.issue(ADMIN_UID)}")
    server.call(other.lease.RevokeLease, request, authorization)
    (lease,) = worker.ask(worker.lease.ListLeases, pb.ListLeasesRequest()).leases
    assert lease.state == pb.LeaseInfo.STATE_EXPIRED


def test_leases_are_listed_in_pages_and_by_tenant(server: Server) -> None:
    """A tenant sees its own leases by time of granting, page by page; an admin sees all."""
    workers = [server.worker(), server.worker(), server.worker(uid=3), server.worker()]
    mine = [each.lease_id for each in workers if each.uid == 2]
    first = workers[0].ask(workers[0].lease.ListLeases, pb.ListLeasesRequest(page_size=2))
    rest = workers[0].ask(
        workers[0].lease.ListLeases, pb.ListLeasesRequest(page_token=first.next_page_token)
    )
    assert [each.lease_id for each in (*first.leases, *rest.leases)] == mine
    assert (len(first.leases), rest.next_page_token) == (2, "")
    admin = server.worker(uid=ADMIN_UID)
    assert len(admin.ask(admin.lease.ListLeases, pb.ListLeasesRequest()).leases) == 5


def test_a_lease_is_listed_with_what_it_holds(server: Server) -> None:
    """A lease's entry names its owner, its process, and what it holds."""
    worker = server.worker()
    (lease,) = worker.ask(worker.lease.ListLeases, pb.ListLeasesRequest()).leases
    assert (lease.display_name, lease.tenant, lease.state) == (
        "worker",
        "uid-2",
        pb.LeaseInfo.STATE_ACTIVE,
    )
    (process,) = lease.processes
    assert (process.pid, process.uid, process.connected) == (worker.number, 2, True)
    assert not lease.HasField("oldest_hold_age")
    worker.publish(worker.open_namespace(), bytes(16), 1)
    (lease,) = worker.ask(worker.lease.ListLeases, pb.ListLeasesRequest()).leases
    assert (lease.reservation_count, lease.counters.inserted_page_count) == (1, 1)
    assert lease.HasField("oldest_hold_age")


def test_holds_are_listed_in_pages_to_the_tenant_and_to_admins(server: Server) -> None:
    """A lease's holds are listed oldest first. Another tenant's lease is reported as unknown."""
    worker, other = server.worker(), server.worker(uid=3)
    admin = server.worker(uid=ADMIN_UID)
    namespace_id = worker.open_namespace()
    worker.publish(namespace_id, bytes(16), 7)
    request = pb.ListHoldsRequest(lease_id=worker.lease_id, page_size=1)
    (hold,) = worker.ask(worker.lease.ListHolds, request).holds
    assert (hold.kind, hold.hold_id) == (pb.HoldInfo.KIND_RESERVATION, 7)
    assert (hold.namespace_id, hold.page_count, hold.token_count) == (namespace_id, 1, 4)
    worker.publish(namespace_id, bytes([1] * 16), 8)
    first = worker.ask(worker.lease.ListHolds, request)
    request.page_token = first.next_page_token
    rest = worker.ask(worker.lease.ListHolds, request)
    assert [each.hold_id for each in (*first.holds, *rest.holds)] == [7, 8]
    assert rest.next_page_token == ""
    whole = pb.ListHoldsRequest(lease_id=worker.lease_id)
    assert len(admin.ask(admin.lease.ListHolds, whole).holds) == 2
    with pytest.raises(Refused) as caught:
        other.ask(other.lease.ListHolds, whole)
    assert caught.value.reason == "LEASE_NOT_FOUND"
    with pytest.raises(Refused) as caught:
        worker.ask(worker.lease.ListHolds, pb.ListHoldsRequest(lease_id=bytes(15)))
    assert (caught.value.reason, caught.value.metadata["field"]) == ("INVALID_FIELD", "lease_id")


@pytest.mark.parametrize(
    ("field", "request_"),
    [
        ("page_size", pb.ListLeasesRequest(page_size=-1)),
        ("page_token", pb.ListLeasesRequest(page_token="x")),  # noqa: S106
    ],
)
def test_a_list_s_page_is_checked(
    server: Server, field: str, request_: pb.ListLeasesRequest
) -> None:
    """A negative page size and an unknown page token are refused."""
    worker = server.worker()
    with pytest.raises(Refused) as caught:
        worker.ask(worker.lease.ListLeases, request_)
    assert (caught.value.reason, caught.value.metadata["field"]) == ("INVALID_FIELD", field)
