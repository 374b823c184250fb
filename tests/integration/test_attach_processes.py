"""The attach socket and the deaths of real processes."""

import os
from pathlib import Path

import pytest

from kvstore.core.values.requests import ReservationRequest
from kvstore.core.values.slots import SlotState
from kvstore.errors import PoolExhausted
from kvstore.v1 import attach_pb2
from stores.store_world import IDENTITY
from wire.attach_rig import ADMIN, SECRET, AttachRig, extent_ids, has_ended, line_of


def test_two_processes_share_pages_in_place(rig: AttachRig) -> None:
    """The store's mapping shows the bytes that another process wrote into an extent."""
    rig.serve()
    caller = rig.lease()
    child = rig.spawn(caller)
    rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    assert line_of(child) == "mapped\n"
    (extent,) = rig.world.store.extents(ADMIN)
    assert os.pread(extent.export.descriptor, 8, 0) == child.pid.to_bytes(8, "little")


def test_a_killed_process_is_noticed_and_its_lease_ends(rig: AttachRig) -> None:
    """A killed worker's reserved slots are free again, without waiting for any clock."""
    rig.serve()
    caller = rig.lease()
    child = rig.spawn(caller)
    namespace = rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    assert line_of(child) == "mapped\n"
    rig.world.store.reserve(caller, namespace.namespace_id, [ReservationRequest(1, 0, 3)])
    child.kill()
    assert rig.wait_for(lambda: not rig.world.store.stats(ADMIN).leases)
    (arena,) = rig.world.store.stats(ADMIN).arenas
    assert sum(arena.slots.values()) == arena.slot_count == arena.slots[SlotState.FREE]


def test_a_death_is_noticed_though_the_connection_lingers(rig: AttachRig) -> None:
    """A dead worker's lease ends even if another process inherited its connection."""
    rig.serve()
    caller = rig.lease()
    script = (
        "import os, subprocess, sys, attach_peer, pathlib\n"
        "peer = attach_peer.AttachPeer()\n"
        "peer.connect(pathlib.Path(sys.argv[1]))\n"
        "peer.hello()\n"
        "peer.bind(bytes.fromhex(sys.argv[2]), bytes.fromhex(sys.argv[3]))\n"
        "os.set_inheritable(peer.socket.fileno(), True)\n"
        "heir = subprocess.Popen(['cat'], close_fds=False)\n"
        "print(heir.pid, flush=True)\n"
        "os._exit(0)\n"
    )
    worker = rig.start(caller, "-c", script)
    heir = int(line_of(worker))
    assert rig.wait_for(lambda: not rig.world.store.stats(ADMIN).leases)
    assert Path(f"/proc/{heir}").exists()
    worker.communicate()


def test_a_process_that_only_hung_up_keeps_its_lease(rig: AttachRig) -> None:
    """A process that only hangs up keeps its lease and may bind again."""
    rig.serve()
    caller = rig.lease()
    peer = rig.bound(caller)
    peer.close()
    while rig.processes(connected=True):
        rig.connect().hello()
    assert rig.processes() == [os.getpid()]
    rig.bound(caller)
    assert rig.processes(connected=True) == [os.getpid()]


def test_a_process_that_binds_again_takes_its_older_connection_over(rig: AttachRig) -> None:
    """A process that binds again ends its older connection and uses the newer one."""
    rig.serve()
    caller = rig.lease()
    older = rig.bound(caller)
    newer = rig.bound(caller)
    assert has_ended(older)
    assert rig.processes(connected=True) == [os.getpid()]
    assert newer.bind(caller.lease_id, SECRET).bound.pid == os.getpid()
    rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    assert extent_ids(newer) == [1]


def test_a_connection_binds_anew_once_its_lease_ended(rig: AttachRig) -> None:
    """A connection may bind the process's next lease after the first one is revoked."""
    rig.serve()
    first, second = rig.lease(), rig.lease()
    peer = rig.bound(first)
    rig.world.store.open_namespace(first, IDENTITY, rig.world.layout)
    assert extent_ids(peer) == [1]
    rig.world.store.revoke(first)
    assert peer.acknowledge(1).acknowledged.extent_ids == []
    assert peer.bind(second.lease_id, SECRET).HasField("bound")
    rig.world.store.open_namespace(second, IDENTITY, rig.world.layout)
    assert extent_ids(peer) == [1]
    assert peer.acknowledge(1).acknowledged.extent_ids == [1]


def test_a_process_whose_connection_broke_as_it_was_bound_is_watched(rig: AttachRig) -> None:
    """A process that hangs up before the answer to Bind is still watched for its death."""
    rig.serve()
    caller = rig.lease()
    script = (
        "import sys, attach_peer, pathlib\n"
        "from kvstore.v1 import attach_pb2\n"
        "peer = attach_peer.AttachPeer()\n"
        "peer.connect(pathlib.Path(sys.argv[1]))\n"
        "peer.hello()\n"
        "lease, secret = (bytes.fromhex(each) for each in sys.argv[2:])\n"
        "bind = attach_pb2.Bind(lease_id=lease, lease_secret=secret)\n"
        "peer.send(attach_pb2.ClientFrame(bind=bind))\n"
        "peer.close()\n"
        "print('closed', flush=True)\n"
        "sys.stdin.read()\n"
    )
    rank = rig.start(caller, "-c", script)
    assert line_of(rank) == "closed\n"
    # Until the server has come to that frame, and found that nobody reads its answer.
    while rig.processes() != [rank.pid] or rig.processes(connected=True):
        rig.connect().hello()
    rank.kill()
    rank.communicate()
    assert rig.wait_for(lambda: not rig.world.store.stats(ADMIN).leases)


def test_what_a_process_unmapped_is_not_handed_out(rig: AttachRig) -> None:
    """A worker gets no slot in an extent that it unmapped."""
    rig.serve()
    caller = rig.lease()
    peer = rig.bound(caller)
    namespace = rig.world.store.open_namespace(caller, IDENTITY, rig.world.layout)
    ids = extent_ids(peer)
    peer.acknowledge(*ids)
    peer.send(attach_pb2.ClientFrame(unmapped=attach_pb2.Unmapped(extent_ids=ids)))
    peer.acknowledge()
    with pytest.raises(PoolExhausted):
        rig.world.store.reserve(caller, namespace.namespace_id, [ReservationRequest(1, 0, 2)])
