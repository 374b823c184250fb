"""A worker that does everything right, in whose name the wrong calls come far."""

import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from time import monotonic
from typing import Any

import grpc

from kvstore.v1 import attach_pb2, lease_pb2, lease_pb2_grpc, store_pb2, store_pb2_grpc, types_pb2
from kvstore_client.calls.blocking_frames import close_all, receive_frame, send_frame
from kvstore_client.runtime_dir import RuntimeDir

LAYOUT = types_pb2.PageLayout(
    page_tokens=2,
    page_bytes=64,
    opaque=types_pb2.OpaqueLayout(fingerprint=b"anything", divides_by_token=True),
)
IDENTITY = types_pb2.NamespaceIdentity(model_digest=b"a model")
# Seconds for each step.
LIMIT = 30.0
PAUSE = 0.05


class Foothold:
    """A lease, this process attached to it, and a namespace with its first extent mapped.

    ``known`` has what the store accepts by the name of the field that it stands in;
    ``metadata`` goes with each call. One thread uses it.
    """

    def __init__(self, runtime_dir: RuntimeDir, channel: grpc.Channel) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(LIMIT)
        self._socket.connect(str(runtime_dir.attach_socket))
        hello = attach_pb2.Hello(protocol_version=1, display_name="foothold")
        welcome = self._ask(attach_pb2.ClientFrame(hello=hello)).welcome
        self._lease_id, self._secret = os.urandom(16), os.urandom(32)
        self._epoch = welcome.store_epoch
        self.metadata: tuple[tuple[str, str | bytes], ...] = (
            ("authorization", f"Bearer {welcome.credential}"),
            ("kvstore-lease-secret-bin", self._secret),
        )
        self._lease = lease_pb2_grpc.LeaseServiceStub(channel)
        self._store = store_pb2_grpc.StoreServiceStub(channel)
        grant = lease_pb2.GrantLeaseRequest(lease_id=self._lease_id, features=["hot_lane"])
        self._call(self._lease.GrantLease, grant)
        bind = attach_pb2.Bind(lease_id=self._lease_id, lease_secret=self._secret)
        self._ask(attach_pb2.ClientFrame(bind=bind))
        opened = self._open()
        self.known: dict[str, Sequence[Any]] = {
            "lease_id": (self._lease_id,),
            "lease_secret": (self._secret,),
            "store_epoch": (self._epoch,),
            "namespace_id": (opened.namespace_id,),
            "page_tokens": (LAYOUT.page_tokens,),
            "page_bytes": (LAYOUT.page_bytes,),
            "protocol_version": (1,),
            "fingerprint": (LAYOUT.opaque.fingerprint,),
            "model_digest": (IDENTITY.model_digest, b"another model"),
            "adapter_digest": (b"", b"an adapter"),
            "salt": (b"", b"a salt"),
            "tensor_parallel_size": (0, 1),
            "position": (0, 0, 0, LAYOUT.page_tokens),
            "start_page": (0, 0, 0, 1),
            "page_size": (0, 10),
            "page_token": ("",),
        }

    def stands(self) -> bool:
        """Renews the lease, map what is announced; returns whether the lease still is one.

        Where a call deleted the namespace it is opened again.
        """
        request = lease_pb2.RenewLeaseRequest(lease_id=self._lease_id, store_epoch=self._epoch)
        try:
            while select.select([self._socket], [], [], 0)[0]:
                self._listen()
            self._call(self._lease.RenewLease, request)
            self.known["namespace_id"] = (self._open().namespace_id,)
        except (EOFError, OSError, grpc.RpcError):
            # Another connection bound this process to it, or a call ended the lease.
            return False
        return True

    def close(self) -> None:
        """Revokes the lease, if it still is one, and hang up."""
        request = lease_pb2.RevokeLeaseRequest(lease_id=self._lease_id, store_epoch=self._epoch)
        with suppress(grpc.RpcError):
            self._call(self._lease.RevokeLease, request)
        self._socket.close()

    def _open(self) -> store_pb2.OpenNamespaceResponse:
        """Opens the namespace; where other calls have taken all memory, once some came back."""
        request = store_pb2.OpenNamespaceRequest(
            lease_id=self._lease_id, store_epoch=self._epoch, identity=IDENTITY, layout=LAYOUT
        )
        until = monotonic() + LIMIT
        while True:
            try:
                opened: store_pb2.OpenNamespaceResponse = self._call(
                    self._store.OpenNamespace, request
                )
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or monotonic() > until:
                    raise
            else:
                return opened
            if select.select([self._socket], [], [], PAUSE)[0]:
                self._listen()

    def _listen(self) -> None:
        frame, descriptors = receive_frame(self._socket)
        close_all(descriptors)
        if frame.HasField("extents"):
            mapped = [each.extent_id for each in frame.extents.extents]
            acknowledge = attach_pb2.Acknowledge(extent_ids=mapped)
            send_frame(self._socket, attach_pb2.ClientFrame(acknowledge=acknowledge))
        if frame.HasField("retire"):
            gone = attach_pb2.Unmapped(extent_ids=frame.retire.extent_ids)
            send_frame(self._socket, attach_pb2.ClientFrame(unmapped=gone))

    def _call(self, method: Any, request: Any) -> Any:  # noqa: ANN401  # stubs are untyped
        return method(request, timeout=LIMIT, metadata=self.metadata)

    def _ask(self, frame: attach_pb2.ClientFrame) -> attach_pb2.ServerFrame:
        send_frame(self._socket, frame)
        answer, descriptors = receive_frame(self._socket)
        close_all(descriptors)
        return answer
