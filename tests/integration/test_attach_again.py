"""The attach socket and a process that mapped extents over an earlier connection."""

import os

import pytest

from kvstore.core.values.requests import Caller
from kvstore.v1 import attach_pb2
from stores.store_world import IDENTITY
from wire.attach_peer import AttachPeer
from wire.attach_rig import SECRET, AttachRig, extent_ids, reason_of


class Mapped:
    """A process that mapped the only extent of its lease, and the memory that it is."""

    def __init__(self, rig: AttachRig) -> None:
        self.rig = rig
        self.caller: Caller = rig.lease()
        self.peer: AttachPeer = rig.bound(self.caller)
        rig.world.store.open_namespace(self.caller, IDENTITY, rig.world.layout)
        frame, (descriptor, table) = self.peer.receive()
        [extent] = frame.extents.extents
        status = os.fstat(descriptor)
        self.extent = attach_pb2.MappedExtent(
            extent_id=extent.extent_id,
            device=status.st_dev,
            inode=status.st_ino,
            size_bytes=status.st_size,
        )
        os.close(descriptor)
        os.close(table)
        assert self.peer.acknowledge(extent.extent_id).HasField("acknowledged")

    def bind_again(
        self, *extents: attach_pb2.MappedExtent
    ) -> tuple[AttachPeer, attach_pb2.ServerFrame]:
        """Binds over another connection, to the next server; returns it and the answer."""
        self.rig.succeed()
        peer = self.rig.connect()
        assert peer.hello().welcome.outlives
        return peer, peer.bind_mapped(self.caller.lease_id, SECRET, extents)

    @property
    def mapped_count(self) -> int:
        """The number of extents that the store counts on in this process."""
        [process] = self.rig.world.cache.table.processes.values()
        return len(process.mapped)


@pytest.fixture
def mapped(rig: AttachRig) -> Mapped:
    """Provides a process with one mapped extent."""
    rig.serve(outlives=True)
    return Mapped(rig)


def test_a_server_says_whether_its_store_outlives_it(rig: AttachRig) -> None:
    """Welcome has ``outlives`` only if the server was told so."""
    rig.serve()
    assert not rig.connect().hello().welcome.outlives


def test_what_is_mapped_is_kept_and_not_sent_again(mapped: Mapped) -> None:
    """An extent of the same memory counts as acknowledged, and only a later one is announced."""
    peer, answer = mapped.bind_again(mapped.extent)
    assert list(answer.bound.kept_extent_ids) == [mapped.extent.extent_id]
    assert mapped.mapped_count == 1
    [namespace] = mapped.rig.world.cache.namespaces.values()
    extent = mapped.rig.world.arenas.allocate(namespace.arena.arena_id, 256)
    mapped.rig.world.cache.add_extent(namespace.arena.arena_id, extent.shape.extent_id, 4)
    mapped.rig.world.store.announcer.announce()
    assert extent_ids(peer) == [extent.shape.extent_id]


@pytest.mark.parametrize("field", ["device", "inode", "size_bytes"])
def test_other_memory_is_not_kept(mapped: Mapped, field: str) -> None:
    """An extent whose memory differs in any way is not kept, and is announced."""
    setattr(mapped.extent, field, getattr(mapped.extent, field) + 1)
    peer, answer = mapped.bind_again(mapped.extent)
    assert list(answer.bound.kept_extent_ids) == []
    assert mapped.mapped_count == 0
    assert extent_ids(peer) == [mapped.extent.extent_id]


def test_an_unknown_extent_is_not_kept(mapped: Mapped) -> None:
    """An extent that the lease does not have is not kept, and nothing is counted for it."""
    mapped.extent.extent_id += 1
    _, answer = mapped.bind_again(mapped.extent)
    assert list(answer.bound.kept_extent_ids) == []
    assert mapped.mapped_count == 0


def test_an_extent_of_another_lease_is_not_kept(rig: AttachRig, mapped: Mapped) -> None:
    """A process cannot claim an extent that its own lease has no namespace in."""
    other = rig.lease()
    peer = rig.connect()
    peer.hello()
    answer = peer.bind_mapped(other.lease_id, SECRET, [mapped.extent])
    assert list(answer.bound.kept_extent_ids) == []


def test_a_retiring_extent_is_kept_until_it_is_unmapped(mapped: Mapped) -> None:
    """A retiring extent is kept, and the next server asks for it again."""
    [namespace] = mapped.rig.world.cache.namespaces.values()
    mapped.rig.world.cache.retire_extent(namespace.arena.arena_id, mapped.extent.extent_id)
    peer, answer = mapped.bind_again(mapped.extent)
    assert list(answer.bound.kept_extent_ids) == [mapped.extent.extent_id]
    frame, _ = peer.receive()
    assert list(frame.retire.extent_ids) == [mapped.extent.extent_id]


def test_too_many_mapped_extents_are_refused(rig: AttachRig) -> None:
    """More extents than a batch may have are refused, before anything is bound."""
    rig.serve()
    caller = rig.lease()
    peer = rig.connect()
    peer.hello()
    most = rig.world.store.limits.max_batch_size
    extents = [attach_pb2.MappedExtent(extent_id=number) for number in range(most + 1)]
    assert reason_of(peer.bind_mapped(caller.lease_id, SECRET, extents)) == "LIMIT_EXCEEDED"
    assert rig.processes() == []
