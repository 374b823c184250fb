"""A process that joins the lease of another process."""

import itertools
from collections.abc import Iterator
from functools import partial
from threading import Condition

import pytest

from kvstore.v1 import lease_pb2
from kvstore_client import Client, ClientConfig, errors
from kvstore_client.lifecycle.attach_attempt import Attempt
from kvstore_client.lifecycle.joined_lease import SharedLease
from kvstore_client.lifecycle.session import Session
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.testing import wait_until
from wire.scripted_session import BOUND, CAPABILITIES, EPOCH, WELCOME
from wire.scripted_store import ScriptedAttach, ScriptedCalls, refusal

SHARED = SharedLease(EPOCH, bytes(range(16)), bytes(range(32)))
LOOKED = lease_pb2.ListHoldsResponse()


def joined_session(runtime_dir: RuntimeDir) -> Session:
    """Returns a session under the owner's lease."""
    attempt = Attempt(runtime_dir, ClientConfig(ttl=60.0, connect_timeout=30), SHARED)
    return attempt.run(Condition(), itertools.count())


def has_looked(scripted: ScriptedCalls, count: int) -> bool:
    """Returns whether the store was asked for the lease's holds this many times."""
    return len(scripted.requests.get("ListHolds", ())) == count


@pytest.fixture
def peer(scripted: ScriptedCalls, runtime_dir: RuntimeDir) -> Iterator[ScriptedAttach]:
    """Provides a store that answers Hello and Bind only."""
    scripted.answer("GetCapabilities", CAPABILITIES)
    peer = ScriptedAttach(runtime_dir.attach_socket, [(WELCOME, ())], [(BOUND, ())])
    yield peer
    peer.close()


def test_a_shared_lease_is_bytes() -> None:
    """A shared lease survives packing. Other bytes are refused."""
    assert SharedLease.unpack(SHARED.pack()) == SHARED
    for wrong in (b"", SHARED.pack()[1:], SHARED.pack()[:40], b"x" * 64):
        with pytest.raises(ValueError, match="not the bytes of a shared lease"):
            SharedLease.unpack(wrong)


def test_a_process_joins_by_binding_alone(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir, peer: ScriptedAttach
) -> None:
    """A process joins with the owner's secret, and grants and revokes no lease."""
    session = joined_session(runtime_dir)
    bind = peer.frames[1].bind
    assert (bind.lease_id, bind.lease_secret) == (SHARED.lease_id, SHARED.secret)
    assert session.usable
    session.end(errors.ClientClosed("closed"))
    session.finish()
    assert session.join(30)
    assert set(scripted.requests) == {"GetCapabilities"}


@pytest.mark.usefixtures("peer")
def test_requests_are_the_owner_s(runtime_dir: RuntimeDir) -> None:
    """A joined process makes no requests, so two processes never choose the same id."""
    session = joined_session(runtime_dir)
    with pytest.raises(errors.StoreUnavailable, match="owner makes the requests"):
        session.request().__enter__()
    assert session.drained is False
    session.abandon()


@pytest.mark.usefixtures("peer")
def test_a_lease_that_ended_ends_who_joined_it(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """A joined process checks the lease regularly, never renews it, and ends with it."""
    scripted.answer("ListHolds", LOOKED, LOOKED, refusal("LEASE_NOT_FOUND"))
    session = joined_session(runtime_dir)
    for count in (1, 2, 3):
        # By the lease's clock it would look in twenty seconds.
        session._keeper.prompt()
        assert wait_until(partial(has_looked, scripted, count))
    assert wait_until(lambda: session.ended is not None)
    assert isinstance(session.ended, errors.LeaseNotFound)
    looks = [lease_pb2.ListHoldsRequest.FromString(each) for each in scripted.requests["ListHolds"]]
    assert {each.lease_id for each in looks} == {SHARED.lease_id}
    assert "RenewLease" not in scripted.requests
    session.abandon()


@pytest.mark.usefixtures("peer")
def test_a_lease_of_a_store_that_restarted_cannot_be_joined(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """A client that joins a lease of a restarted store reports it and stops trying."""
    gone = SharedLease(EPOCH + 1, SHARED.lease_id, SHARED.secret)
    with Client(runtime_dir.path, ClientConfig(), join=gone.pack()) as client:
        client._connector._thread.join(30)
        assert not client._connector._thread.is_alive()
        with pytest.raises(errors.StaleEpoch):
            client.share_lease()
    assert scripted.requests == {}


def test_a_lease_that_cannot_be_joined_yet_is_tried_again(
    scripted: ScriptedCalls, runtime_dir: RuntimeDir
) -> None:
    """A client keeps trying to join while the store does not answer."""
    config = ClientConfig(first_backoff=0.01, longest_backoff=0.01)
    with Client(runtime_dir.path, config, join=SHARED.pack()) as client:
        assert not client.wait_connected(0.1)
        scripted.answer("GetCapabilities", CAPABILITIES)
        peer = ScriptedAttach(runtime_dir.attach_socket, [(WELCOME, ())], [(BOUND, ())])
        assert client.wait_connected(30)
        assert client.share_lease() == SHARED.pack()
    peer.close()
