"""One life of the store: all of it but its threads and gRPC's wire."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import grpc
from google.rpc import error_details_pb2, status_pb2

from kvstore.core.cache import PrefixCache
from kvstore.core.invariants.check import Invariants
from kvstore.core.invariants.invariant import InvariantBroken
from kvstore.core.leases.lease import Lease
from kvstore.core.values.limits import Limits
from kvstore.core.values.slots import SlotState
from kvstore.rpc.attach.server import AttachServer
from kvstore.rpc.fair_queue import CallThreads
from kvstore.rpc.grpc_adapter import GrpcAdapter
from kvstore.rpc.pipeline import Pipeline
from kvstore.rpc.server import Sockets, add_contract
from kvstore.service.attached_processes import Processes
from kvstore.service.periodic_threads import Grower, Reaper
from kvstore.service.random_ids import random_ids
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.storage.arenas import Arenas
from kvstore.storage.host.host_memory import HostMemory
from kvstore.v1 import prefix_cache_pb2
from simulation import sockets
from simulation.kernel import Kernel, Violation
from simulation.wire import Call, Metadata
from stores.told_succession import ToldSuccession, as_recovered, inherited

PAGE_TOKENS = 4
PAGE_BYTES = 64
EXTENT_SLOTS = 4
ADMIN_UID = 1
REAPER_INTERVAL = 0.25
# Short, so that a schedule outlives tombstones; twice the deadline, as the store's own.
LIMITS = Limits(min_ttl=0.2, max_deadline=10.0, tombstone_ttl=20.0)
# How many calls are between two looks at the laws.
CALLS_PER_CHECK = 16


@dataclass
class Context:
    """A call as a servicer sees it."""

    metadata: Metadata
    remaining: float

    def invocation_metadata(self) -> Metadata:
        """Returns what came with the call."""
        return self.metadata

    def time_remaining(self) -> float:
        """Returns the seconds to the deadline."""
        return self.remaining

    def peer(self) -> str:
        """Returns that the call came over the unix socket."""
        return "unix:"

    def abort_with_status(self, status: Any) -> NoReturn:  # noqa: ANN401 - as in grpc
        """Ends the call."""
        raise _Ended(status.code, status.details, status.trailing_metadata)


class _Ended(Exception):
    def __init__(self, code: grpc.StatusCode, text: str, trailing: Metadata) -> None:
        super().__init__(text)
        self.code, self.text, self.trailing = code, text, trailing


@dataclass
class Executed:
    """The result of a call."""

    code: grpc.StatusCode
    payload: bytes = b""
    text: str = ""
    trailing: Metadata = ()
    reason: str = "OK"


class _Handlers:
    """Takes the handlers that are meant for a gRPC server."""

    def __init__(self) -> None:
        self.by_method: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: object) -> None:
        """Takes none: those that are registered are the same."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        """Takes a service's."""
        self.by_method |= {f"/{service}/{name}": each for name, each in handlers.items()}


class StoreNode:
    """A store from its start to its death. ``outcomes`` counts calls by method and reason."""

    def __init__(
        self,
        kernel: Kernel,
        path: Path,
        *,
        slots: int,
        outcomes: Counter[tuple[str, str]],
        outlives: bool = False,
    ) -> None:
        """With ``outlives`` the store outlives its server, so that another one can follow."""
        self.alive = True
        # Counts the servers of this store. Between two of them none answers.
        self.server_number = 1
        self.answers = True
        self.outcomes = outcomes
        self.epoch = kernel.random.getrandbits(63) or 1
        self._kernel = kernel
        self._arenas = Arenas(
            budget_bytes=slots * PAGE_BYTES,
            extent_bytes=EXTENT_SLOTS * PAGE_BYTES,
            source=HostMemory(path.parent / "nothing"),
            extent_ids=random_ids(),
        )
        # What is recycled is overwritten, so that whoever still reads it sees that.
        self.cache = PrefixCache(
            self.epoch, LIMITS, arena_ids=random_ids(), recycled=self._arenas.poison
        )
        succession = ToldSuccession(outlives=outlives)
        self.store = KVStore(
            self.cache, arenas=self._arenas, clock=kernel.clock, succession=succession
        )
        self._laws = Invariants(self.cache)
        self._gone: dict[int, Callable[[], None]] = {}
        self._answers: dict[bytes, bytes] = {}
        self._calls = 0
        self._path, self._outlives = path, outlives
        self._credentials = credentials = Credentials(frozenset({ADMIN_UID}))
        self._processes = Processes()
        self._reaper = Reaper(self.store, clock=kernel.clock, interval=REAPER_INTERVAL)
        self._grower = Grower(self.store.growth, clock=kernel.clock, interval=REAPER_INTERVAL)
        self._attach = self._start_attach()
        self._handlers = self._serve(credentials, path)
        self._tick()

    def _serve(self, credentials: Credentials, path: Path) -> dict[str, Any]:
        handlers, store = _Handlers(), self.store
        server: Any = handlers
        add_contract(server, store, Sockets(path, path), "simulated")
        # Calls run where they arrive: none is submitted to the threads.
        idle = CallThreads(1, 1024)
        pipeline = Pipeline(store, self._kernel.clock)
        self._adapter = GrpcAdapter(pipeline, credentials, idle, idle)
        return handlers.by_method

    def _tick(self) -> None:
        if self.alive:
            if self.answers:
                self._reaper.tick()
                self._grower.tick()
            self._kernel.after(REAPER_INTERVAL, self._tick)

    def _start_attach(self) -> AttachServer:
        sockets.connecting.clear()
        attach = AttachServer(
            self._path,
            store=self.store,
            credentials=self._credentials,
            clock=self._kernel.clock,
            processes=self._processes,
        )
        attach.start()
        return attach

    def kill(self) -> None:
        """Ends it at once, with all calls under way."""
        self.alive = False
        if self.answers:
            self._end_server()
        self._processes.close()
        self._arenas.close()
        sockets.stir()

    @property
    def outlives(self) -> bool:
        """True if the store outlives its server."""
        return self._outlives

    def end_server(self) -> None:
        """Ends the server at once, with all calls under way. The store's memory stays."""
        if self.answers:
            self._end_server()
            sockets.stir()

    def _end_server(self) -> None:
        self.answers = False
        # Its table ends with the server.
        self._processes = inherited(self._processes)
        self._attach.close()
        gone, self._gone = self._gone, {}
        for each in gone.values():
            each()

    def start_server(self) -> None:
        """Starts the next server, as one that recovered what the last one had."""
        if self.answers or not self.alive:
            return
        as_recovered(self.cache, self._kernel.clock())
        self.answers = True
        self.server_number += 1
        self._attach = self._start_attach()
        self._grow_if_due()

    def when_gone(self, call: Call, action: Callable[[], None]) -> None:
        """Registers an action for the store's death before a call has ended."""
        self._gone[id(call)] = action

    def execute(self, call: Call, remaining: float) -> Executed:
        """Does what a call asks for, and see that a refused one changed nothing."""
        method = call.method.name
        context = Context(call.metadata, remaining)
        before = self._state()
        try:
            details: Any = SimpleNamespace(method=method, invocation_metadata=call.metadata)
            handler: Any = self._adapter.intercept_service(
                lambda _: self._handlers[method], details
            )
            response = handler.stream_unary(iter((call.request,)), context)
        except _Ended as ended:
            reason = _reason_of(ended.trailing)
            executed = Executed(ended.code, b"", ended.text, ended.trailing, reason)
            # A namespace is open, also where its first extent cannot be had yet.
            if self._state() != before and not method.endswith("/OpenNamespace"):
                raise Violation(f"{method} was refused ({reason}) and changed something") from None
        else:
            executed = Executed(grpc.StatusCode.OK, response)
            self._compare(method, call.request, executed.payload)
        name = method.rpartition("/")[2]
        self.outcomes[name, executed.reason] += 1
        self._kernel.note(call.channel.process.name, name, executed.reason, _ids_of(call))
        self._calls += 1
        if self._calls % CALLS_PER_CHECK == 0:
            self.check()
        self._grow_if_due()
        return executed

    def check(self) -> None:
        """Sees that all laws of the cache hold."""
        try:
            self._laws.check()
        except InvariantBroken as error:
            raise Violation(f"law: {error}") from error

    def leases(self) -> list[Lease]:
        """Returns the leases that have not ended."""
        return list(self.cache.table.leases.values())

    def require_rest(self) -> None:
        """Sees that no lease holds anything, when nobody uses anything."""
        for lease in self.leases():
            if lease.pins or lease.reservations:
                held = [*lease.pins, *lease.reservations]
                raise Violation(f"at rest {lease.display_name} holds {held}")

    def require_empty(self) -> None:
        """Sees that nothing is held, by anybody."""
        left = [each.display_name for each in self.leases()]
        if left:
            raise Violation(f"leases are left: {left}")
        for arena in self.cache.arenas.values():
            for state in (SlotState.RESERVED, SlotState.QUARANTINED, SlotState.DETACHED):
                if arena.counts[state]:
                    raise Violation(f"{arena.counts[state]} slots are left {state.name}")

    def _grow_if_due(self) -> None:
        if self.store.growth.due.is_set():
            self.store.growth.due.clear()
            self._kernel.after(self._kernel.turn(), self._grow)

    def _grow(self) -> None:
        if self.alive and self.answers:
            self._grower.tick()
            self._grow_if_due()

    def _compare(self, method: str, request: bytes, payload: bytes) -> None:
        """Sees that a match that pinned something is answered the same again."""
        if not method.endswith("/MatchPrefix"):
            return
        response = prefix_cache_pb2.MatchPrefixResponse.FromString(payload)
        # Told only to the first call.
        response.match.ClearField("in_flight")
        if response.match.runs or response.match.HasField("source"):
            told = response.SerializeToString(deterministic=True)
            if self._answers.setdefault(request, told) != told:
                raise Violation("a repeated match was answered otherwise")

    def _state(self) -> object:
        """Returns what a refused call must not change."""
        cache = self.cache
        arenas = [tuple(arena.counts) for arena in cache.arenas.values()]
        leases = [
            (len(each.pins), len(each.reservations), each.state)
            for each in cache.table.leases.values()
        ]
        spaces = [
            (each.index.page_count, len(each.index.nodes), each.named_pin_count)
            for each in cache.namespaces.values()
        ]
        return arenas, leases, spaces


def _reason_of(trailing: Metadata) -> str:
    for _, value in trailing:
        assert isinstance(value, bytes)
        info = error_details_pb2.ErrorInfo()
        status_pb2.Status.FromString(value).details[0].Unpack(info)
        return str(info.reason)
    return "NO_DETAILS"


def _ids_of(call: Call) -> str:
    """Returns the first characters of a request, which tell one from another in a trace."""
    return call.request.hex()[-24:]
