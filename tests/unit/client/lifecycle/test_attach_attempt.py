"""One attempt to attach, against scripted sockets."""

import itertools
from collections.abc import Iterator, Sequence
from threading import Condition, Event, Thread

import pytest
from google.rpc import status_pb2

from kvstore.v1 import attach_pb2, lease_pb2
from kvstore_client import errors
from kvstore_client.config import ClientConfig
from kvstore_client.lifecycle.attach_attempt import Attempt
from kvstore_client.lifecycle.session import Session
from kvstore_client.runtime_dir import RuntimeDir
from wire.scripted_session import BOUND, CAPABILITIES, EPOCH, GRANTED, REVOKED, WELCOME
from wire.scripted_store import Answer, ScriptedAttach, ScriptedCalls, refusal

REFUSED = attach_pb2.ServerFrame(refused=status_pb2.Status.FromString(refusal("LEASE_NOT_FOUND")))


class Attempted:
    """An attempt on scripted sockets."""

    def __init__(self, runtime_dir: RuntimeDir, *answers: Sequence[Answer]) -> None:
        self.peer = ScriptedAttach(runtime_dir.attach_socket, *answers)
        config = ClientConfig(display_name="me", ttl=2.5, connect_timeout=30)
        self.attempt = Attempt(runtime_dir, config)

    def run(self) -> Session:
        """Runs the attempt and returns its session."""
        return self.attempt.run(Condition(), itertools.count())


@pytest.fixture
def attempted(runtime_dir: RuntimeDir) -> Iterator[Attempted]:
    """Provides an attempt whose Hello and Bind are answered."""
    attempted = Attempted(runtime_dir, [(WELCOME, ())], [(BOUND, ())])
    yield attempted
    attempted.peer.close()


def test_an_attempt_grants_and_binds_a_lease(scripted: ScriptedCalls, attempted: Attempted) -> None:
    """The granted lease is then bound, with the same random secret."""
    scripted.answer("GrantLease", GRANTED)
    scripted.answer("GetCapabilities", CAPABILITIES)
    session = attempted.run()
    request = lease_pb2.GrantLeaseRequest.FromString(scripted.requests["GrantLease"][0])
    bind = attempted.peer.frames[1].bind
    assert (request.display_name, request.ttl.ToTimedelta().total_seconds()) == ("me", 2.5)
    assert (len(request.lease_id), request.lease_id) == (16, bind.lease_id)
    assert scripted.metadata["kvstore-lease-secret-bin"] == bind.lease_secret
    assert len(bind.lease_secret) == 32
    assert (session.store_epoch, session.tenant, session.usable) == (EPOCH, "t", True)
    session.abandon()


def test_a_lease_that_is_refused_leaves_nothing(
    scripted: ScriptedCalls, attempted: Attempted
) -> None:
    """A refused grant raises its error and leaves no open connection."""
    scripted.answer("GrantLease", refusal("STORE_DRAINING"))
    scripted.answer("RevokeLease", REVOKED)
    with pytest.raises(errors.StoreDraining):
        attempted.run()
    assert len(attempted.peer.frames) == 1
    assert attempted.attempt._handshake.connection._socket.fileno() == -1


def test_a_lease_of_another_epoch_is_given_back(
    scripted: ScriptedCalls, attempted: Attempted
) -> None:
    """A lease of another epoch is revoked, because the store restarted after Hello."""
    scripted.answer("GrantLease", lease_pb2.GrantLeaseResponse(store_epoch=EPOCH + 1))
    scripted.answer("RevokeLease", REVOKED)
    with pytest.raises(errors.StoreUnavailable, match="restarted"):
        attempted.run()
    granted = lease_pb2.GrantLeaseRequest.FromString(scripted.requests["GrantLease"][0])
    revoked = lease_pb2.RevokeLeaseRequest.FromString(scripted.requests["RevokeLease"][0])
    assert granted.lease_id == revoked.lease_id


def test_a_process_that_is_not_bound_gives_its_lease_back(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """A lease is revoked, as far as possible, if its process cannot be bound."""
    attempted = Attempted(runtime_dir, [(WELCOME, ())], [(REFUSED, ())])
    scripted.answer("GrantLease", GRANTED)
    with pytest.raises(errors.LeaseNotFound):
        attempted.run()
    attempted.peer.close()


def test_an_attempt_can_be_aborted(scripted: ScriptedCalls, attempted: Attempted) -> None:
    """Another thread can abort an attempt that waits for the store."""
    slow = Event()
    scripted.answer("GrantLease", slow, GRANTED)
    raised: list[errors.StoreError] = []

    def run() -> None:
        try:
            attempted.run()
        except errors.StoreUnavailable as error:
            raised.append(error)

    thread = Thread(target=run)
    thread.start()
    assert scripted.came.wait(30)
    attempted.attempt.abort()
    thread.join(30)
    slow.set()
    assert len(raised) == 1


def test_an_attempt_aborted_before_it_runs_grants_nothing(
    scripted: ScriptedCalls, attempted: Attempted
) -> None:
    """An abort before the attempt runs still counts, and no lease is granted."""
    attempted.attempt.abort()
    with pytest.raises(errors.StoreUnavailable):
        attempted.run()
    assert scripted.requests == {}
