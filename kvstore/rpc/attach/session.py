"""The protocol of the attach socket for one peer, without its sockets."""

import os
from collections.abc import Iterable
from typing import NamedTuple

import structlog
from google.protobuf.message import DecodeError

from kvstore.core import Caller
from kvstore.errors import FeatureUnsupported, InvalidField, NotAttached, PeerRefused
from kvstore.rpc.attach.frames import MAX_DESCRIPTORS
from kvstore.rpc.attach.peer import Peer
from kvstore.rpc.lane import FEATURE, HotLanes, Party
from kvstore.rpc.pipeline import digest_of
from kvstore.rpc.wire import fields
from kvstore.rpc.wire.report import exported_extents
from kvstore.service.attached_processes import Process, Processes
from kvstore.service.store import ExtentDescription, HostExport, KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1 import attach_pb2

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

PROTOCOL_VERSION = 1
# An extent takes two descriptors: of its memory, and of its generation table.
MAX_EXTENTS = MAX_DESCRIPTORS // 2


class Announcement(NamedTuple):
    """A frame for a process, and the descriptors that go with it, which stay the store's."""

    frame: attach_pb2.ServerFrame
    descriptors: tuple[int, ...]


class AttachSession:
    """One peer's side of the protocol. Only the attach server's thread uses it.

    The session owns ``peer`` from now on. ``process`` is the peer as attached under a lease. The
    server sets it to None when the lease ended and all is unmapped, or when another connection of
    the process took over. ``party`` is the owner of the lane that the connection was asked to
    become. Without ``lanes`` it cannot become one.
    """

    def __init__(
        self,
        peer: Peer,
        *,
        store: KVStore,
        credentials: Credentials,
        processes: Processes,
        lanes: HotLanes | None = None,
    ) -> None:
        self.welcomed = False
        self.process: Process | None = None
        self.party: Party | None = None
        self._lanes = lanes
        self._peer = peer
        self._store = store
        self._credentials = credentials
        self._processes = processes
        self._offered: set[int] = set()
        self._retired: set[int] = set()
        self._knows_renew = False
        self._was_asked_to_renew = False

    @property
    def uid(self) -> int:
        """The peer's uid, as the kernel reports it."""
        return self._peer.uid

    def receive(self, payload: bytes) -> attach_pb2.ServerFrame | None:
        """Acts on a frame of the peer and returns the answer, if it has one.

        Raises a KVStoreError to refuse the peer.
        """
        try:
            frame = attach_pb2.ClientFrame.FromString(payload)
        except DecodeError as error:
            raise InvalidField(field="frame", value=f"{len(payload)} bytes") from error
        kind = frame.WhichOneof("message")
        if kind == "hello":
            return self._hello(frame.hello)
        if not self.welcomed:
            raise InvalidField(field="frame", value=kind, why="Hello comes first")
        if kind == "bind":
            return self._bind(frame.bind)
        if kind == "acknowledge":
            fields.require_batch(frame.acknowledge.extent_ids, self._store.limits)
            return self._acknowledge(frame.acknowledge)
        if kind == "unmapped":
            fields.require_batch(frame.unmapped.extent_ids, self._store.limits)
            if self.process is not None:
                self._store.unmapped(self.process.process_id, frame.unmapped.extent_ids)
            return None
        if kind == "open_lane":
            return self._open_lane(frame.open_lane)
        raise InvalidField(field="frame", value=kind, why="unknown")

    def close(self) -> None:
        """Drops the peer; once, when its connection ended."""
        self._peer.close()

    def announce(self) -> Announcement | None:
        """Returns the next frame for the process, or None.

        It is about extents to map or to unmap, or says once that the store begins to stop.
        """
        if self.process is None:
            return None
        process_id, frame = self.process.process_id, attach_pb2.ServerFrame()
        if self._knows_renew and self._store.is_draining and not self._was_asked_to_renew:
            self._was_asked_to_renew = True
            frame.renew.SetInParent()
            return Announcement(frame, ())
        given = self._store.hand_out(process_id, self._offered, most=MAX_EXTENTS)
        if given:
            self._offered.update(each.shape.extent_id for each in given)
            messages, descriptors = exported_extents(given)
            frame.extents.extents.extend(messages)
            return Announcement(frame, descriptors)
        retired = set(self._store.extents_to_unmap(process_id)) - self._retired
        if not retired:
            return None
        self._retired |= retired
        frame.retire.extent_ids.extend(sorted(retired))
        return Announcement(frame, ())

    def _hello(self, hello: attach_pb2.Hello) -> attach_pb2.ServerFrame:
        if hello.protocol_version != PROTOCOL_VERSION:
            raise InvalidField(
                field="hello.protocol_version", value=hello.protocol_version, why="only 1 is spoken"
            )
        fields.name("hello.display_name", hello.display_name, self._store.limits)
        if hello.cuda_mps:
            raise PeerRefused(why="the death of a CUDA MPS client is not the end of its work")
        identity = self._credentials.identity_of(self._peer.uid)
        if not self.welcomed:
            name, pid = hello.display_name, self._peer.pid
            log.debug("peer_welcomed", pid=pid, uid=self._peer.uid, display_name=name)
        self.welcomed, self._knows_renew = True, hello.knows_renew
        if hello.replaces and identity.admin:
            self._store.cleaning.begin()
        welcome = attach_pb2.Welcome(
            credential=self._credentials.issue(self._peer.uid),
            tenant=identity.tenant,
            admin=identity.admin,
            store_epoch=self._store.epoch,
            outlives=self._store.succession.outlives,
        )
        return attach_pb2.ServerFrame(welcome=welcome)

    def _bind(self, bind: attach_pb2.Bind) -> attach_pb2.ServerFrame:
        caller = self._caller_of("bind", bind)
        lease_id = caller.lease_id
        if self._is_bound_to_another(lease_id):
            raise InvalidField(
                field="bind.lease_id", value=lease_id.hex(), why="bound to another lease"
            )
        fields.require_batch(bind.mapped, self._store.limits)
        process = self._processes.attach(self._peer.pid, self._peer.pidfd, lease_id)
        # If this raises, the server finds that the store does not know the process.
        self._store.bind(
            caller, process_id=process.process_id, pid=self._peer.pid, uid=self._peer.uid
        )
        if process is not self.process:
            self.process = process
            self._offered.clear()
            self._retired.clear()
            log.info("process_attached", pid=process.pid, lease_id=lease_id.hex())
        kept = self._keep(process, bind.mapped)
        bound = attach_pb2.Bound(pid=self._peer.pid, kept_extent_ids=kept)
        return attach_pb2.ServerFrame(bound=bound)

    def _keep(self, process: Process, mapped: Iterable[attach_pb2.MappedExtent]) -> list[int]:
        """Counts those extents as mapped whose memory is the store's, and returns them."""
        claimed = {e.extent_id: _Memory(e.device, e.inode, e.size_bytes) for e in mapped}
        given = self._store.hand_out_again(process.process_id, claimed)
        same = [
            each.shape.extent_id
            for each in given
            if _memory_of(each) == claimed[each.shape.extent_id]
        ]
        self._offered.update(same)
        return self._store.acknowledge(process.process_id, same)

    def _open_lane(self, wanted: attach_pb2.OpenLane) -> attach_pb2.ServerFrame:
        if self._lanes is None:
            raise FeatureUnsupported(feature=FEATURE)
        if self.process is not None:
            raise InvalidField(field="frame", value="open_lane", why="the connection is bound")
        caller = self._caller_of("open_lane", wanted)
        self._store.require_feature(caller, FEATURE)
        process = self._processes.find(self._peer.pid, self._peer.pidfd, caller.lease_id)
        if process is None:
            raise NotAttached(lease_id=caller.lease_id.hex())
        party = Party(self._peer.uid, caller.lease_id, caller.secret_digest, process.process_id)
        self._lanes.require_room(party)
        self.party = party
        opened = attach_pb2.LaneOpened(methods=self._lanes.methods)
        return attach_pb2.ServerFrame(lane_opened=opened)

    def _caller_of(self, name: str, frame: attach_pb2.Bind | attach_pb2.OpenLane) -> Caller:
        """Returns the caller under the lease that a frame names."""
        lease_id = fields.random_id(f"{name}.lease_id", frame.lease_id)
        digest = digest_of(frame.lease_secret, f"{name}.lease_secret")
        return Caller(self._credentials.identity_of(self._peer.uid), lease_id, digest, None)

    def _is_bound_to_another(self, lease_id: bytes) -> bool:
        """Returns whether the process is bound, under another lease that has not ended."""
        if self.process is None or self.process.lease_id == lease_id:
            return False
        return self.process.process_id in self._store.attached_process_ids()

    def _acknowledge(self, acknowledge: attach_pb2.Acknowledge) -> attach_pb2.ServerFrame:
        """Notes which given extents are mapped; none after the lease ended."""
        counted: list[int] = []
        if self.process is not None:
            given = [each for each in acknowledge.extent_ids if each in self._offered]
            counted = self._store.acknowledge(self.process.process_id, given)
        answer = attach_pb2.Acknowledged(extent_ids=counted)
        return attach_pb2.ServerFrame(acknowledged=answer)


class _Memory(NamedTuple):
    """The memory behind a descriptor, as fstat describes it."""

    device: int
    inode: int
    size_bytes: int


def _memory_of(extent: ExtentDescription) -> _Memory | None:
    """Returns the memory of an extent that was given to a process; None for a device's."""
    if not isinstance(extent.export, HostExport):
        return None
    status = os.fstat(extent.export.descriptor)
    return _Memory(status.st_dev, status.st_ino, status.st_size)
