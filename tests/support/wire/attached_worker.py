"""A worker of the contract alone: raw attach frames and generated stubs, no client of ours."""

import os
import secrets
from pathlib import Path
from typing import Any

import grpc

from kvstore.v1 import (
    attach_pb2,
    lease_pb2,
    lease_pb2_grpc,
    named_pin_pb2_grpc,
    prefix_cache_pb2,
    prefix_cache_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
    types_pb2,
)
from stores.rpc_world import Refused, refusal_of
from wire.attach_peer import AttachPeer

__all__ = ["PAGE_BYTES", "PAGE_TOKENS", "AttachedWorker", "Refused"]

LIMIT = 30.0
PAGE_TOKENS = 4
PAGE_BYTES = 4096


class AttachedWorker:
    """A process with a credential; with a lease after ``grant``, attached after ``bind``."""

    def __init__(self, runtime_dir: Path) -> None:
        self.peer = AttachPeer()
        self.peer.connect(runtime_dir / "attach.sock")
        self.welcome: attach_pb2.Welcome = self.peer.hello().welcome
        self.epoch = self.welcome.store_epoch
        self.lease_id = secrets.token_bytes(16)
        self.secret = secrets.token_bytes(32)
        self.channel = grpc.insecure_channel(
            f"unix:{runtime_dir / 'kvstore.sock'}", options=(("grpc.use_local_subchannel_pool", 1),)
        )
        self.lease = lease_pb2_grpc.LeaseServiceStub(self.channel)
        self.prefix_cache = prefix_cache_pb2_grpc.PrefixCacheServiceStub(self.channel)
        self.named_pin = named_pin_pb2_grpc.NamedPinServiceStub(self.channel)
        self.store = store_pb2_grpc.StoreServiceStub(self.channel)

    @property
    def metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """The metadata of every call: credential and secret."""
        return (
            ("authorization", f"Bearer {self.welcome.credential}"),
            ("kvstore-lease-secret-bin", self.secret),
        )

    def ask(self, method: Any, request: Any) -> Any:  # noqa: ANN401 - stubs are untyped
        """Returns a call's answer; raises Refused."""
        try:
            return method(request, timeout=LIMIT, metadata=self.metadata, wait_for_ready=True)
        except grpc.RpcError as error:
            raise refusal_of(error) from error

    def caller(self) -> prefix_cache_pb2.Caller:
        """Returns the message that names this worker."""
        return prefix_cache_pb2.Caller(lease_id=self.lease_id, store_epoch=self.epoch)

    def grant(self) -> lease_pb2.GrantLeaseResponse:
        """Grants the lease."""
        request = lease_pb2.GrantLeaseRequest(lease_id=self.lease_id, display_name="worker")
        answer: lease_pb2.GrantLeaseResponse = self.ask(self.lease.GrantLease, request)
        return answer

    def bind(self) -> None:
        """Attaches this process to the lease."""
        assert self.peer.bind(self.lease_id, self.secret).HasField("bound")

    def renew_request(self) -> lease_pb2.RenewLeaseRequest:
        """Returns the request that renews the lease."""
        return lease_pb2.RenewLeaseRequest(lease_id=self.lease_id, store_epoch=self.epoch)

    def renew(self) -> lease_pb2.RenewLeaseResponse:
        """Renews the lease."""
        answer: lease_pb2.RenewLeaseResponse = self.ask(self.lease.RenewLease, self.renew_request())
        return answer

    def revoke(self) -> None:
        """Ends the lease."""
        request = lease_pb2.RevokeLeaseRequest(lease_id=self.lease_id, store_epoch=self.epoch)
        self.ask(self.lease.RevokeLease, request)

    def open_namespace(self) -> bytes:
        """Opens a namespace, acknowledge what is announced then, and returns its id."""
        answer = self.ask(
            self.store.OpenNamespace,
            store_pb2.OpenNamespaceRequest(
                lease_id=self.lease_id,
                store_epoch=self.epoch,
                identity=types_pb2.NamespaceIdentity(model_digest=b"a model"),
                layout=types_pb2.PageLayout(
                    page_tokens=PAGE_TOKENS,
                    page_bytes=PAGE_BYTES,
                    opaque=types_pb2.OpaqueLayout(fingerprint=b"a layout"),
                ),
            ),
        )
        frame, descriptors = self.peer.receive()
        for each in descriptors:
            os.close(each)
        self.peer.acknowledge(*(each.extent_id for each in frame.extents.extents))
        namespace_id: bytes = answer.namespace_id
        return namespace_id

    def reserve(self, namespace_id: bytes, reservation_id: int, page_count: int) -> None:
        """Reserves slots from a sequence's beginning."""
        request = prefix_cache_pb2.ReservePagesRequest(
            caller=self.caller(), namespace_id=namespace_id
        )
        request.reservations.add(reservation_id=reservation_id, page_count=page_count)
        self.ask(self.prefix_cache.ReservePages, request)

    def insert(self, reservation_id: int, tokens: bytes) -> None:
        """Inserts the pages of a sequence from its beginning."""
        request = prefix_cache_pb2.InsertPrefixRequest(
            caller=self.caller(),
            reservation_id=reservation_id,
            sequence=prefix_cache_pb2.Sequence(tokens=tokens),
        )
        self.ask(self.prefix_cache.InsertPrefix, request)

    def close(self) -> None:
        """Hangs up, without a word to the lease."""
        self.channel.close()
        self.peer.close()
