"""A store behind an attach socket, in this process, and peers of it."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from threading import Condition

from google.rpc import error_details_pb2, status_pb2

from kvstore.core.values.requests import Caller, Identity
from kvstore.rpc.attach.server import MAX_CONNECTIONS, PATIENCE, AttachServer
from kvstore.rpc.lane import FEATURE, HotLanes
from kvstore.rpc.pipeline import digest_of
from kvstore.service.attached_processes import Processes
from kvstore.service.clock import MONOTONIC
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1 import attach_pb2
from stores.store_world import World, make_world
from stores.told_succession import ToldSuccession, as_recovered, inherited
from wire import attach_peer
from wire.attach_peer import LIMIT, AttachPeer

PEER = Path(attach_peer.__file__)
ADMIN = Identity("uid-0", admin=True)
TENANT = f"uid-{os.getuid()}"
# The secret of all leases.
SECRET = b"secret of 16 bytes and more"


class AttachRig:
    """A store behind an attach socket, and peers of it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "attach.sock"
        self.world: World = make_world(slots=1000, extent_slots=4)
        self.credentials = Credentials()
        self.changed = Condition()
        self.server: AttachServer | None = None
        self._inherited: Processes | None = None
        self.lanes: HotLanes | None = None
        self._peers: list[AttachPeer] = []
        self._children: list[subprocess.Popen[str]] = []

    def serve(
        self,
        *,
        max_connections: int = MAX_CONNECTIONS,
        patience: float = PATIENCE,
        outlives: bool = False,
    ) -> AttachServer:
        """Starts the server."""
        self.lanes = HotLanes(self.world.store, self.credentials, MONOTONIC)
        self.lanes.start()
        self.world.store.succession = ToldSuccession(outlives=outlives)
        self.server = AttachServer(
            self.path,
            store=self.world.store,
            credentials=self.credentials,
            clock=MONOTONIC,
            lanes=self.lanes,
            processes=self._inherited,
            max_connections=max_connections,
            patience=patience,
        )
        self.server.start()
        self.world.store.announcer.subscribe(self._wake)
        return self.server

    def succeed(self) -> None:
        """Ends the server, and starts another around the same store, which has nobody mapped."""
        assert self.server is not None
        self._inherited = inherited(self.server._processes)
        self.server.close()
        self.close_lanes()
        as_recovered(self.world.cache, MONOTONIC())
        self.serve(outlives=True)

    def _wake(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def lease(self) -> Caller:
        """Grants a lease to this process's tenant."""
        caller = self.world.caller(tenant=TENANT)
        caller = caller._replace(secret_digest=digest_of(SECRET))
        self.world.store.grant(caller, ttl=300.0, display_name="test", features=(FEATURE,))
        return caller

    def connect(self) -> AttachPeer:
        """Connect."""
        peer = self.unconnected()
        peer.connect(self.path)
        return peer

    def unconnected(self) -> AttachPeer:
        """Returns a peer that is yet to connect."""
        self._peers.append(AttachPeer())
        return self._peers[-1]

    def bound(self, caller: Caller) -> AttachPeer:
        """Returns a connection of this process that is bound to a lease."""
        peer = self.connect()
        assert peer.hello().HasField("welcome")
        assert peer.bind(caller.lease_id, SECRET).HasField("bound")
        return peer

    def spawn(self, caller: Caller) -> subprocess.Popen[str]:
        """Returns a process that is bound to a lease."""
        child = self.start(caller, str(PEER))
        assert line_of(child) == "bound\n"
        return child

    def start(self, caller: Caller, *program: str) -> subprocess.Popen[str]:
        """Starts a program of Python that can import the peer; its arguments name a lease."""
        child = subprocess.Popen(
            [sys.executable, *program, str(self.path), caller.lease_id.hex(), SECRET.hex()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join([str(PEER.parent), *sys.path])},
        )
        self._children.append(child)
        return child

    def processes(self, *, connected: bool | None = None) -> list[int]:
        """Returns the pids attached under all leases, those connected or not if asked."""
        return [
            process.pid
            for lease in self.world.store.stats(ADMIN).leases
            for process in lease.processes
            if connected in (None, process.connected)
        ]

    def wait_for(self, condition: Callable[[], object]) -> bool:
        """Waits until a condition of the store holds; returns whether it came to hold."""
        with self.changed:
            return bool(self.changed.wait_for(condition, LIMIT))

    def close(self) -> None:
        """Ends everything."""
        for peer in self._peers:
            peer.close()
        for child in self._children:
            child.kill()
            child.communicate()
        if self.server is not None and self.server.is_alive():
            self.server.close()
        self.close_lanes()
        self.world.arenas.close()

    def close_lanes(self) -> None:
        """Ends all lanes, if they were served."""
        lanes, self.lanes = self.lanes, None
        if lanes is not None:
            lanes.close()


def line_of(child: subprocess.Popen[str]) -> str:
    """Returns the next line of a process."""
    assert child.stdout is not None
    return child.stdout.readline()


def reason_of(frame: attach_pb2.ServerFrame) -> str:
    """Returns the reason of a refusal, which has exactly one ErrorInfo."""
    assert frame.WhichOneof("message") == "refused"
    status: status_pb2.Status = frame.refused
    (detail,) = [each for each in status.details if each.Is(error_details_pb2.ErrorInfo.DESCRIPTOR)]
    info = error_details_pb2.ErrorInfo()
    assert detail.Unpack(info)
    assert info.domain == "kvstore"
    return str(info.reason)


def has_ended(peer: AttachPeer) -> bool:
    """Returns whether the server ended a connection, waiting for that."""
    try:
        peer.receive()
    except (EOFError, ConnectionResetError):
        return True
    return False


def extent_ids(peer: AttachPeer) -> list[int]:
    """Returns the extents of the next frame, and closes their descriptors."""
    frame, descriptors = peer.receive()
    for each in descriptors:
        os.close(each)
    return [each.extent_id for each in frame.extents.extents]
