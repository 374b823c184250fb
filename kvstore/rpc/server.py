"""The gRPC server: its services, its limits, its addresses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import grpc
from grpc_health.v1 import health
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from kvstore.core import Limits
from kvstore.rpc.attach.table import SocketAccess
from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.grpc_adapter import GrpcAdapter, queue_of
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.pipeline import Pipeline
from kvstore.rpc.reflection import BoundedReflection
from kvstore.rpc.servicers.lease import LeaseServicer
from kvstore.rpc.servicers.named_pin import NamedPinServicer
from kvstore.rpc.servicers.prefix_cache import PrefixCacheServicer
from kvstore.rpc.servicers.store import StoreServicer
from kvstore.rpc.tls import Tls
from kvstore.service.clock import Clock
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1 import (
    lease_pb2,
    lease_pb2_grpc,
    named_pin_pb2,
    named_pin_pb2_grpc,
    prefix_cache_pb2,
    prefix_cache_pb2_grpc,
    store_pb2,
    store_pb2_grpc,
)

# Calls wait for the store's mutex: more threads would only wait there. Some may allocate an
# extent, or serve a reflection stream, while the others go on.
THREAD_COUNT = 16
# Calls beyond this are refused at once, which a worker counts as a miss. They do not wait until
# nobody wants their answers.
MAX_CALLS = 1024
# Calls that arrived and that the one thread which takes all calls has not taken yet. Beyond this
# gRPC cancels calls of any tenant without a reason; its own default is 1000. Each takes 16 KiB of
# memory, and 35 KiB with a request of 20 kB: measured with 8,000 calls, gRPC 1.85.
MAX_PENDING = 4 * MAX_CALLS
# Connections of each address, so that strangers leave descriptors to the others.
MAX_CONNECTIONS = 256

SERVICES: tuple[str, ...] = tuple(
    service.full_name
    for file in (lease_pb2, prefix_cache_pb2, named_pin_pb2, store_pb2)
    for service in file.DESCRIPTOR.services_by_name.values()
)


class UnusableAddress(Exception):
    """The TCP address cannot be bound."""


class Sockets(NamedTuple):
    """The paths of the gRPC socket, and of the attach socket, which others serve.

    ``features`` are offered beside the basics, on either socket.
    """

    grpc_path: Path
    attach_path: Path
    access: SocketAccess = SocketAccess()
    features: tuple[str, ...] = ()


def call_threads() -> CallThreads:
    """Returns the threads that take a server's calls."""
    return CallThreads(THREAD_COUNT, MAX_CALLS)


def build_server(
    store: KVStore,
    credentials: Credentials,
    health_state: Health,
    *,
    sockets: Sockets,
    version: str,
    clock: Clock,
    threads: CallThreads | None = None,
) -> grpc.Server:
    """Returns a server bound to its socket, with its mode and group, and not started.

    ``version`` is the server's, ``threads`` take its calls. The socket's folder has to exist, and
    nothing may be at its path: gRPC would replace the socket of a live server without an error.
    Raises ``RuntimeError`` if the socket cannot be bound.
    """
    threads = threads or call_threads()

    def charge(tenant: str, turns: int) -> None:
        threads.charge(queue_of(tenant), turns)

    pipeline = Pipeline(store, clock, store.call_times.get("grpc"), charge)
    adapter = GrpcAdapter(pipeline, credentials, threads, health_state.servicer.threads)
    server = grpc.server(
        threads,
        interceptors=[adapter],
        options=server_options(store.limits),
        maximum_concurrent_rpcs=MAX_CALLS,
    )
    add_services(server, store, health_state, sockets=sockets, version=version)
    # The address is a URI, and gRPC decodes quoted characters in it.
    server.add_insecure_port(f"unix:{quote(str(sockets.grpc_path))}")
    sockets.access.apply(sockets.grpc_path)
    return server


def listen(server: grpc.Server, address: str, tls: Tls | None) -> int:
    """Binds a server that is not started to ``HOST:PORT`` too, and returns the port.

    Without ``tls`` nothing is encrypted. Raises :class:`UnusableAddress`.
    """
    try:
        if tls is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, tls.credentials())
    except RuntimeError:
        raise UnusableAddress(
            f"{address} cannot be listened on: it is taken, or not of this host"
        ) from None


def server_options(limits: Limits) -> tuple[tuple[str, int], ...]:
    """Returns the options of gRPC's core."""
    return (
        ("grpc.max_receive_message_length", limits.max_message_bytes),
        ("grpc.max_send_message_length", limits.max_message_bytes),
        # One server a socket: a second one is an error, not a share of the calls.
        ("grpc.so_reuseport", 0),
        ("grpc.max_allowed_incoming_connections", MAX_CONNECTIONS),
        ("grpc.server.max_pending_requests", MAX_PENDING),
        ("grpc.server.max_pending_requests_hard_limit", MAX_PENDING),
    )


def add_services(
    server: grpc.Server,
    store: KVStore,
    health_state: Health,
    *,
    sockets: Sockets,
    version: str,
) -> None:
    """Registers every service: the contract's, health and reflection."""
    add_contract(server, store, sockets, version)
    health_state.servicer.add_to(server)
    names = (*SERVICES, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(BoundedReflection(names), server)


def add_contract(server: grpc.Server, store: KVStore, sockets: Sockets, version: str) -> None:
    """Registers the services of the contract, whose servicers take a Call in place of a context."""
    servicers: dict[Callable[[Any, grpc.Server], None], object] = {
        lease_pb2_grpc.add_LeaseServiceServicer_to_server: LeaseServicer(store),
        prefix_cache_pb2_grpc.add_PrefixCacheServiceServicer_to_server: PrefixCacheServicer(store),
        named_pin_pb2_grpc.add_NamedPinServiceServicer_to_server: NamedPinServicer(store),
        store_pb2_grpc.add_StoreServiceServicer_to_server: StoreServicer(
            store, sockets.attach_path, version, sockets.features
        ),
    }
    for add, servicer in servicers.items():
        add(servicer, server)
