"""The attach socket: the answers and the memory that a peer gets."""

import fcntl
import mmap
import os
import stat
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from kvstore.core.values.requests import Identity, ReservationRequest
from kvstore.errors import LeaseNotFound
from kvstore.rpc.attach.frames import LENGTH
from kvstore_client.testing import wait_until
from stores.store_world import IDENTITY
from wire.attach_rig import SECRET, TENANT, AttachRig, extent_ids, has_ended


def test_a_peer_is_told_who_it_is(rig: AttachRig) -> None:
    """Welcome has a credential for the kernel's uid, the tenant and the epoch."""
    rig.serve()
    welcome = rig.connect().hello().welcome
    assert rig.credentials.identify(welcome.credential).identity == Identity(TENANT, admin=True)
    assert (welcome.tenant, welcome.admin) == (TENANT, True)
    assert welcome.store_epoch == rig.world.store.epoch


def test_an_admin_that_replaces_the_server_has_its_journal_cleaned(
    rig: AttachRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others cannot cause that work."""
    rig.serve()
    asked: list[bool] = []
    monkeypatch.setattr(rig.world.store.cleaning, "begin", lambda: asked.append(True))
    assert rig.connect().hello(replaces=True).HasField("welcome")
    assert rig.connect().hello().HasField("welcome")
    assert len(asked) == 1
    monkeypatch.setattr(rig.credentials, "identity_of", lambda _: Identity(TENANT))
    assert rig.connect().hello(replaces=True).HasField("welcome")
    assert len(asked) == 1


@pytest.mark.parametrize("knows_renew", [True, False])
def test_a_bound_process_is_asked_to_renew_once(rig: AttachRig, *, knows_renew: bool) -> None:
    """The store begins to stop. A process that does not know the frame is not asked."""
    rig.serve()
    peer, caller = rig.connect(), rig.lease()
    assert peer.hello(knows_renew=knows_renew).HasField("welcome")
    assert peer.bind(caller.lease_id, SECRET).HasField("bound")
    rig.world.store.begin_draining()
    if knows_renew:
        assert peer.receive()[0].WhichOneof("message") == "renew"
    rig.world.store.announcer.announce()
    assert peer.acknowledge().HasField("acknowledged")


def test_the_socket_is_its_owners_alone(rig: AttachRig) -> None:
    """Only the owner may connect, a stale socket is replaced, and closing removes the socket."""
    rig.path.touch()
    server = rig.serve()
    assert stat.S_IMODE(rig.path.stat().st_mode) == 0o600
    server.close()
    assert not rig.path.exists()


def test_a_bound_process_is_given_sealed_extents(rig: AttachRig) -> None:
    """A bound process gets sealed, close-on-exec descriptors once, and uses acknowledged ones."""
    rig.serve()
    caller = rig.lease()
    peer = rig.bound(caller)
    namespace = rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    frame, (descriptor, table) = peer.receive()
    (extent,) = frame.extents.extents
    assert extent.arena_id == namespace.arena.arena_id
    assert (extent.tier, extent.slot_count, extent.slot_bytes) == (1, 4, 256)
    seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    assert seals == fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    assert not os.get_inheritable(descriptor)
    assert os.fstat(descriptor).st_size == extent.host.size_bytes == 1024
    assert (extent.generation_table.descriptor_index, extent.generation_table.size_bytes) == (1, 32)
    assert os.pread(table, 32, 0) == bytes(32)
    assert fcntl.fcntl(table, fcntl.F_GET_SEALS) == seals
    assert fcntl.fcntl(table, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    with pytest.raises(PermissionError):
        mmap.mmap(table, 0)
    os.close(descriptor)
    os.close(table)
    counted = peer.acknowledge(extent.extent_id, 999)
    assert counted.acknowledged.extent_ids == [extent.extent_id]
    rig.world.store.reserve(caller, namespace.namespace_id, [ReservationRequest(1, 0, 1)])


def test_new_extents_are_announced_over_the_open_connection(rig: AttachRig) -> None:
    """A bound process is told of each new extent of its arena once."""
    rig.serve()
    caller = rig.lease()
    peer = rig.bound(caller)
    namespace = rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    first = extent_ids(peer)
    peer.acknowledge(*first)
    rig.world.store.reserve(caller, namespace.namespace_id, [ReservationRequest(1, 0, 4)])
    rig.world.store.growth.step()
    second = extent_ids(peer)
    assert (first, second) == ([1], [2])


def test_many_extents_come_in_frames_of_32(rig: AttachRig) -> None:
    """A process that binds late gets all extents, 32 to a frame."""
    rig.serve()
    early, late = rig.lease(), rig.lease()
    rig.bound(early)
    namespace = rig.world.store.open_namespace(early, IDENTITY, rig.world.layout)
    for _ in range(99):
        extent = rig.world.arenas.allocate(namespace.arena.arena_id, 256)
        rig.world.cache.add_extent(namespace.arena.arena_id, extent.shape.extent_id, 4)
    peer = rig.bound(late)
    rig.world.store.open_namespace(late, IDENTITY, rig.world.layout)
    assert [len(extent_ids(peer)) for _ in range(4)] == [32, 32, 32, 4]


def test_a_store_that_ends_hangs_up(rig: AttachRig) -> None:
    """Closing the server closes every connection, so clients notice the end of the store."""
    server = rig.serve()
    peers = [rig.bound(rig.lease()), rig.connect()]
    assert server.is_alive()
    server.close()
    assert not server.is_alive()
    assert all(has_ended(peer) for peer in peers)


def test_no_secret_is_logged(rig: AttachRig) -> None:
    """Neither credentials nor lease secrets are in the log."""
    with capture_logs() as lines:
        server = rig.serve()
        caller = rig.lease()
        peer = rig.connect()
        credential = peer.hello().welcome.credential
        peer.bind(caller.lease_id, SECRET)
        rig.connect().socket.sendall(LENGTH.pack(4) + b"\xff\xff\xff\xff")
        rig.world.store.revoke(caller)
        server.close()
    text = repr(lines)
    assert lines
    assert credential not in text
    assert SECRET.decode() not in text
    with pytest.raises(LeaseNotFound):
        rig.world.store.renew(caller)


def test_nothing_is_left_open(rig: AttachRig) -> None:
    """All descriptors are closed when all peers and the server are gone."""
    before = sockets_and_pidfds()
    server = rig.serve()
    caller = rig.lease()
    peer = rig.bound(caller)
    rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    extent_ids(peer)
    peer.close()
    server.close()
    rig.close_lanes()
    # Channels of tests before this one may be closed only now.
    assert wait_until(lambda: sockets_and_pidfds() <= before)
    assert server.failure_count == 0


def sockets_and_pidfds() -> int:
    """Returns the number of this process's descriptors that are no plain files or memory."""
    targets = [str(each.resolve()) for each in Path("/proc/self/fd").iterdir()]
    return sum("socket:" in each or "anon_inode" in each for each in targets)
