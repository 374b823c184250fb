"""A session of a client on a wire that is written down."""

import itertools
import os
from datetime import timedelta
from threading import Condition
from typing import Any

from kvstore.v1 import attach_pb2, lease_pb2, prefix_cache_pb2, store_pb2, types_pb2
from kvstore_client.config import ClientConfig
from kvstore_client.lifecycle.attach_attempt import Attempt
from kvstore_client.lifecycle.session import Session
from kvstore_client.memory.shared_memory import REQUIRED_SEALS
from kvstore_client.runtime_dir import RuntimeDir
from kvstore_client.values.namespace_key import NamespaceIdentity, NamespaceKey
from kvstore_client.values.page_layout import OpaqueContent, PageLayout
from wire.scripted_store import ScriptedAttach, ScriptedCalls, sealed_memfd

EPOCH = 5
EXTENT_ID = 3
KEY = NamespaceKey(NamespaceIdentity(b"model"), PageLayout(4, 64, OpaqueContent(b"x")))
WELCOME = attach_pb2.ServerFrame(
    welcome=attach_pb2.Welcome(credential="c", tenant="t", store_epoch=EPOCH)
)
BOUND = attach_pb2.ServerFrame(bound=attach_pb2.Bound(pid=7))
ACKNOWLEDGED = attach_pb2.ServerFrame(acknowledged=attach_pb2.Acknowledged(extent_ids=[EXTENT_ID]))
GRANTED = lease_pb2.GrantLeaseResponse(ttl=timedelta(seconds=60), store_epoch=EPOCH)
RENEWED = lease_pb2.RenewLeaseResponse(ttl=timedelta(seconds=60))
REVOKED = lease_pb2.RevokeLeaseResponse()
RELEASED = prefix_cache_pb2.ReleasePinsResponse()
ABORTED = prefix_cache_pb2.AbortReservationResponse()
OPENED = store_pb2.OpenNamespaceResponse(namespace_id=b"space", arena_id=1, extent_ids=[EXTENT_ID])
LIMITS = store_pb2.Limits(max_batch_size=10, max_deadline=timedelta(seconds=60))
CAPABILITIES = store_pb2.GetCapabilitiesResponse(store_epoch=EPOCH, limits=LIMITS)


def run_of(*slots: int, extent_id: int = EXTENT_ID) -> types_pb2.PageRun:
    """Returns a run of slots that were never given back."""
    generations = [0] * len(slots)
    return types_pb2.PageRun(extent_id=extent_id, slot_indexes=slots, generations=generations)


def matched(*slots: int, extent_id: int = EXTENT_ID) -> prefix_cache_pb2.PrefixMatch:
    """Returns a match of the pages in these slots."""
    runs = [run_of(*slots, extent_id=extent_id)] if slots else []
    return prefix_cache_pb2.PrefixMatch(matched_token_count=4 * len(slots), runs=runs)


class ScriptedSession:
    """Attaches to scripted sockets, with one extent of four slots announced.

    ``generations`` is the descriptor of its slots' table, ``memory`` that of their bytes. Calls
    have half a minute, unless ``settings`` say otherwise.
    """

    def __init__(
        self,
        runtime_dir: RuntimeDir,
        calls: ScriptedCalls,
        *,
        outlives: bool = False,
        **settings: Any,  # noqa: ANN401  # a config's fields
    ) -> None:
        self.calls = calls
        self.generations = sealed_memfd(32, REQUIRED_SEALS)
        self.memory = sealed_memfd(256, REQUIRED_SEALS)
        welcome = attach_pb2.ServerFrame()
        welcome.CopyFrom(WELCOME)
        welcome.welcome.outlives = outlives
        self.attach = ScriptedAttach(
            runtime_dir.attach_socket, [(welcome, ())], [(BOUND, ())], [(ACKNOWLEDGED, ())]
        )
        calls.answer("GrantLease", GRANTED)
        calls.answer("GetCapabilities", CAPABILITIES)
        self.config = ClientConfig(**{"call_timeout": 30, "connect_timeout": 30, **settings})
        self.monitor = Condition()
        self.session: Session = Attempt(runtime_dir, self.config).run(
            self.monitor, itertools.count(1)
        )

    def open(self) -> Session:
        """Announce the extent and open the namespace."""
        frame = attach_pb2.ServerFrame(extents=attach_pb2.Extents())
        frame.extents.extents.add(
            extent_id=EXTENT_ID,
            arena_id=1,
            slot_count=4,
            slot_bytes=64,
            host=types_pb2.HostHandle(size_bytes=256),
            generation_table=types_pb2.GenerationTable(descriptor_index=1, size_bytes=32),
        )
        self.attach.send((frame, [self.memory, self.generations]))
        self.calls.answer("OpenNamespace", OPENED)
        self.session.open_namespace(KEY)
        return self.session

    def recycle(self, slot: int) -> None:
        """Does as a store does when it gives a slot back for the first time."""
        os.pwrite(self.generations, (1).to_bytes(8, "little"), 8 * slot)

    def close(self) -> None:
        """Ends the session and its sockets."""
        self.session.abandon()
        assert self.session.join(30)
        self.attach.close()
        os.close(self.generations)
        os.close(self.memory)


def match(session: Session, pin_id: int) -> None:
    """Asks for a match, as a namespace does."""
    with session.request(pin_ids=(pin_id,)) as asking:
        asking.ask(session.lease.match, b"space", b"", (pin_id, pin_id + 1), asking.remaining())
