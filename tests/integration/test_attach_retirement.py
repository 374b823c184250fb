"""Retired extents on the attach socket, and the processes that the store waits for."""

import os

import pytest

from kvstore.core.values.requests import Caller, ReservationRequest
from kvstore.v1 import attach_pb2
from stores.store_world import IDENTITY
from wire.attach_peer import AttachPeer
from wire.attach_rig import AttachRig, extent_ids


class Worker:
    """A lease of this process with one bound connection, and one extent in its arena."""

    def __init__(self, rig: AttachRig) -> None:
        rig.serve()
        self.rig = rig
        self.caller: Caller = rig.lease()
        self.peer: AttachPeer = rig.bound(self.caller)
        self.store = rig.world.store
        self.namespace = self.store.open_namespace(self.caller, IDENTITY, rig.world.layout)
        assert extent_ids(self.peer) == [1]

    def retire(self) -> None:
        """Retires the extent and lets the store's threads react."""
        with self.store._mutex:
            self.rig.world.cache.retire_extent(self.namespace.arena.arena_id, 1)
        self.look()

    def look(self) -> None:
        """Runs one round of the attach server's announcements."""
        self.store.announcer.announce()

    def unmap(self, peer: AttachPeer, *extent_ids: int) -> None:
        """Sends Unmapped on a connection and waits until the server read it."""
        unmapped = attach_pb2.Unmapped(extent_ids=extent_ids)
        peer.send(attach_pb2.ClientFrame(unmapped=unmapped))
        assert peer.acknowledge().HasField("acknowledged")

    def goes(self) -> bool:
        """Frees the extent if no process needs it any more. Returns whether it did."""
        with self.store._mutex:
            return self.rig.world.cache.remove_extent(1)


@pytest.fixture
def worker(rig: AttachRig) -> Worker:
    """Provides a worker that has one extent."""
    return Worker(rig)


def retired(peer: AttachPeer) -> list[int]:
    """Returns the extents that the next frame asks to unmap."""
    frame, descriptors = peer.receive()
    assert descriptors == ()
    assert frame.WhichOneof("message") == "retire"
    return list(frame.retire.extent_ids)


def test_an_extent_goes_after_its_process_unmapped_it(worker: Worker) -> None:
    """A process is asked once to unmap an extent, and the extent goes after its answer."""
    worker.peer.acknowledge(1)
    worker.retire()
    assert retired(worker.peer) == [1]
    assert not worker.goes()
    worker.look()
    worker.unmap(worker.peer, 1)
    assert worker.goes()


def test_what_was_offered_and_not_acknowledged_is_waited_for(worker: Worker) -> None:
    """An offered extent is also asked back, because its handle may be mapped at any time."""
    worker.retire()
    assert retired(worker.peer) == [1]
    assert not worker.goes()
    worker.unmap(worker.peer, 1)
    assert worker.goes()


def test_nothing_is_asked_for_that_is_in_use(worker: Worker) -> None:
    """An extent is asked back only after its last held slot is free."""
    worker.peer.acknowledge(1)
    request = [ReservationRequest(1, 0, 2)]
    worker.store.reserve(worker.caller, worker.namespace.namespace_id, request)
    worker.retire()
    assert worker.peer.acknowledge().HasField("acknowledged")
    worker.store.abort(worker.caller, [1])
    worker.look()
    assert retired(worker.peer) == [1]


def test_a_process_that_comes_back_is_asked_again(worker: Worker) -> None:
    """A process that reconnects is asked to unmap the extents from its earlier connection."""
    worker.peer.acknowledge(1)
    worker.peer.close()
    pid = os.getpid()
    assert worker.rig.wait_for(lambda: worker.rig.processes(connected=False) == [pid])
    worker.retire()
    assert not worker.goes()
    again = worker.rig.bound(worker.caller)
    assert retired(again) == [1]
    worker.unmap(again, 1)
    assert worker.goes()


def test_a_process_whose_lease_ended_is_still_asked(worker: Worker) -> None:
    """A process whose lease ended is still asked, because its memory may stay mapped."""
    worker.peer.acknowledge(1)
    worker.store.revoke(worker.caller)
    worker.retire()
    assert retired(worker.peer) == [1]
    assert not worker.goes()
    worker.unmap(worker.peer, 1)
    assert worker.goes()


def test_hanging_up_after_the_leases_end_says_that_all_is_unmapped(worker: Worker) -> None:
    """A process whose lease and connection ended is not waited for."""
    worker.peer.acknowledge(1)
    worker.store.revoke(worker.caller)
    worker.retire()
    worker.peer.close()
    assert worker.rig.wait_for(worker.goes)


def test_a_process_that_binds_after_is_not_given_it(worker: Worker) -> None:
    """A retired extent is not offered to a process that binds later."""
    worker.retire()
    second = worker.rig.lease()
    peer = worker.rig.bound(second)
    worker.store.open_namespace(second, IDENTITY, worker.rig.world.layout)
    assert extent_ids(peer) == [2]
