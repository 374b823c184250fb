"""Every frame of a client, for its own lease and another's, without a known uid, and by an admin.

The expected results are in tests/support/stores/permission_table.py, which docs/permissions.md
shows.
"""

import os

import pytest
from google.protobuf.message import Message

from kvstore.core.values.requests import Caller, Identity
from kvstore.rpc.pipeline import digest_of
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1 import attach_pb2
from stores.permission_table import FRAMES
from stores.store_world import IDENTITY
from wire.attach_rig import SECRET, TENANT, AttachRig, extent_ids, reason_of

# Names of nothing.
NO_LEASE = b"\xee" * 16
NO_EXTENT = 1 << 30


class Frames:
    """A store with a lease of this process's tenant and one of another's, each with an extent."""

    def __init__(self, rig: AttachRig, *, admin: bool = False, known: bool = True) -> None:
        self._rig, self._known = rig, known
        rig.credentials = Credentials(frozenset({os.getuid()} if admin else ()))
        server = rig.serve()
        self.own, self.other = self._lease(TENANT), self._lease("another")
        self.own_extent = self._extent(self.own)
        self.other_extent = self._extent(self.other)
        if not known:
            server._overflow_uid = os.getuid()

    def answer(self, kind: str, lease_id: bytes, extent_id: int) -> tuple[str, Message]:
        """Returns the reason that answers a peer's frame about these ids, and the answer itself."""
        peer, frame = self._rig.connect(), attach_pb2.ClientFrame()
        message = getattr(frame, kind)
        if kind == "hello":
            message.protocol_version = 1
        elif kind in ("bind", "open_lane"):
            message.lease_id, message.lease_secret = lease_id, SECRET
        else:
            message.extent_ids.append(extent_id)
        # Whom the store knows may say it once what comes before is said.
        if self._known and kind != "hello":
            peer.hello()
        if self._known and kind == "open_lane":
            # A lane is one more connection of a process that is bound.
            bound = self._rig.connect()
            bound.hello()
            bound.bind(self.own.lease_id, SECRET)
        if self._known and kind not in ("hello", "bind", "open_lane"):
            peer.bind(self.own.lease_id, SECRET)
            assert extent_ids(peer) == [self.own_extent]
        peer.send(frame)
        if self._known and kind == "unmapped":
            # It has no answer: what is answered is the next frame.
            peer.send(attach_pb2.ClientFrame(hello=attach_pb2.Hello(protocol_version=1)))
        answer = peer.receive()[0]
        if answer.HasField("refused"):
            return reason_of(answer), answer
        if kind == "unmapped" and answer.HasField("welcome"):
            return "no answer", answer
        if answer.HasField("acknowledged") and not answer.acknowledged.extent_ids:
            return "acknowledged, nothing", answer
        return str(answer.WhichOneof("message")), answer

    def mapped(self) -> list[int]:
        """Returns the number of usable extents of each attached process of the other tenant."""
        leases = self._rig.world.store.stats(self.other.identity).leases
        return [process.mapped_extent_count for lease in leases for process in lease.processes]

    def _lease(self, tenant: str) -> Caller:
        fresh = self._rig.world.caller(tenant=tenant)
        caller = fresh._replace(identity=Identity(tenant), secret_digest=digest_of(SECRET))
        self._rig.world.store.grant(caller, ttl=300.0, display_name="test", features=("hot_lane",))
        return caller

    def _extent(self, caller: Caller) -> int:
        """Opens a namespace for a process of the lease, which maps the extent."""
        store, number = self._rig.world.store, self._rig.world.process_id(caller)
        store.bind(caller, process_id=-number, pid=number, uid=1)
        namespace = store.open_namespace(caller, IDENTITY, self._rig.world.layout)
        (extent_id,) = namespace.arena.extents
        store.acknowledge(-number, [extent_id])
        return extent_id


def test_every_frame_is_classified() -> None:
    """The table has exactly the frames that a client may send, so a new one must be added."""
    (kinds,) = attach_pb2.ClientFrame.DESCRIPTOR.oneofs
    assert {each.name for each in kinds.fields} == set(FRAMES)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_peer_may_do_with_its_own(rig: AttachRig, kind: str) -> None:
    """A frame about the peer's own lease is answered as the table says."""
    frames = Frames(rig)
    assert frames.answer(kind, frames.own.lease_id, frames.own_extent)[0] == FRAMES[kind].own


@pytest.mark.parametrize("kind", [kind for kind, each in FRAMES.items() if each.other])
@pytest.mark.parametrize("admin", [False, True], ids=["tenant", "admin"])
def test_another_tenant_s_is_as_if_it_was_not_there(
    rig: AttachRig, kind: str, *, admin: bool
) -> None:
    """Another uid learns and changes nothing, even with a lease's id and secret."""
    frames = Frames(rig, admin=admin)
    before = frames.mapped()
    ended, answer = frames.answer(kind, frames.other.lease_id, frames.other_extent)
    assert ended == (FRAMES[kind].admin if admin else FRAMES[kind].other)
    absent = frames.answer(kind, NO_LEASE, NO_EXTENT)[1]
    taken, absence = (
        each.SerializeToString().replace(given.hex().encode(), b"GIVEN")
        for each, given in ((answer, frames.other.lease_id), (absent, NO_LEASE))
    )
    assert taken == absence
    assert frames.mapped() == before == [1]


@pytest.mark.parametrize("kind", FRAMES)
def test_nobody_known_is_refused(rig: AttachRig, kind: str) -> None:
    """A peer with the overflow uid is refused."""
    frames = Frames(rig, known=False)
    assert frames.answer(kind, frames.own.lease_id, frames.own_extent)[0] == FRAMES[kind].nobody


def test_an_admin_is_welcomed_as_one(rig: AttachRig) -> None:
    """The answer to an admin's Hello says that it is an admin."""
    ended, answer = Frames(rig, admin=True).answer("hello", b"", 0)
    assert ended == FRAMES["hello"].admin
    assert isinstance(answer, attach_pb2.ServerFrame)
    assert answer.welcome.admin
