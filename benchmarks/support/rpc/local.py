"""A worker of a store in this process: the same requests and answers, without gRPC.

What is timed around the store's methods is the core under its mutex; what is
left of a call is messages, the pipeline and servicers.
"""

import itertools
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from kvstore.core.cache import PrefixCache
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller
from kvstore.logs import configure_logging
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.pipeline import digest_of
from kvstore.rpc.server import SERVICES, Sockets, add_services
from kvstore.service.clock import MONOTONIC
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.storage.arenas import Arenas
from kvstore.storage.host.host_memory import HostMemory
from kvstore.v1 import lease_pb2, prefix_cache_pb2, store_pb2
from support.rpc.handlers import CallContext, Metadata, Registry, adapter_of
from support.rpc.worker import KEY, TIMEOUT, Worker

EPOCH = 1
PROCESS_ID = 1
LEASE_ID = bytes(16)
SECRET = bytes(32)
HEALTH = "/grpc.health.v1.Health/Check"
FILES = (lease_pb2, prefix_cache_pb2, store_pb2)


class TimedStore:
    """A store, and the processor time that its last method took, in nanoseconds."""

    def __init__(self, store: KVStore) -> None:
        self.last_ns = 0
        self._store = store

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # it is whatever the store has
        """Returns the store's attributes, with its methods timed."""
        found = getattr(self._store, name)
        return self._timed(found) if callable(found) else found

    def _timed(self, method: Callable[..., object]) -> Callable[..., object]:
        def timed(*args: object, **kwargs: object) -> object:
            began = time.thread_time_ns()
            try:
                return method(*args, **kwargs)
            finally:
                self.last_ns = time.thread_time_ns() - began

        return timed


class LocalCaller:
    """The only caller."""

    def __init__(self, credential: str) -> None:
        self._metadata = (
            ("authorization", f"Bearer {credential}"),
            ("kvstore-lease-secret-bin", SECRET),
        )

    def invocation_metadata(self) -> Metadata:
        """Returns the call's metadata."""
        return self._metadata

    def time_remaining(self) -> float:
        """Returns the seconds until its deadline."""
        return TIMEOUT

    def peer(self) -> str:
        """Returns the address of the caller, as gRPC names it."""
        return "unix:"


@contextmanager
def local_worker(tier_bytes: int) -> Iterator[tuple[Worker, TimedStore]]:
    """Provides a worker of a store of its own with one extent of ``tier_bytes``, and that store."""
    configure_logging("console", "warning")
    clock = MONOTONIC
    arenas = Arenas(budget_bytes=tier_bytes, extent_bytes=tier_bytes, source=HostMemory())
    try:
        real = KVStore(PrefixCache(EPOCH, Limits()), arenas=arenas, clock=clock)
        timed, credentials = TimedStore(real), Credentials()
        registry = Registry()
        add_services(
            registry.as_server(),
            cast("KVStore", timed),
            Health(SERVICES, {}, clock=clock),
            sockets=Sockets(Path("none"), Path("none")),
            version="benchmark",
        )
        methods = registry.methods(adapter_of(real, credentials, clock))
        context = CallContext(LocalCaller(credentials.issue(os.geteuid())))
        paths = {
            method.name: (f"/{service.full_name}/{method.name}", method.output_type)
            for file in FILES
            for service in file.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }

        def ask(name: str, request: Any, tokens: bytes = b"") -> Any:  # noqa: ANN401  # untyped
            path, output = paths[name]
            if tokens:
                request.sequence.tokens = tokens
            answer = methods[path](request.SerializeToString(), context)
            return output._concrete_class.FromString(answer)  # noqa: SLF001  # no public way

        def probe() -> None:
            timed.last_ns = 0
            methods[HEALTH](b"", context)

        ask("GrantLease", lease_pb2.GrantLeaseRequest(lease_id=LEASE_ID))
        identity = credentials.identity_of(os.geteuid())
        caller = Caller(identity, LEASE_ID, digest_of(SECRET), None)
        real.bind(caller, process_id=PROCESS_ID, pid=os.getpid(), uid=os.geteuid())
        opened = ask(
            "OpenNamespace",
            store_pb2.OpenNamespaceRequest(
                lease_id=LEASE_ID,
                store_epoch=EPOCH,
                identity=KEY.identity.to_message(),
                layout=KEY.layout.to_message(),
            ),
        )
        real.acknowledge(PROCESS_ID, list(opened.extent_ids))
        message = prefix_cache_pb2.Caller(
            lease_id=LEASE_ID, store_epoch=EPOCH, slot_ranges=True, packed_slots=True
        )
        yield Worker(ask, probe, message, opened.namespace_id, itertools.count(1)), timed
    finally:
        arenas.close()
