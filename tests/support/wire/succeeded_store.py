"""A store in this process whose sockets end and are served anew, as by the next server."""

from pathlib import Path
from threading import Event

import grpc

from kvstore.core.cache import PrefixCache
from kvstore.core.values.limits import Limits
from kvstore.rpc.attach.server import AttachServer
from kvstore.rpc.health.watchdog import Health
from kvstore.rpc.lane import FEATURE, HotLanes
from kvstore.rpc.server import SERVICES, Sockets, build_server
from kvstore.rpc.servicers.prefix_cache import IN_FLIGHT, KV_CACHE_GROUPS, STEP
from kvstore.runtime_dir import RuntimeDir
from kvstore.service.attached_processes import Processes
from kvstore.service.clock import MONOTONIC
from kvstore.service.periodic_threads import Grower, Reaper, Ticker
from kvstore.service.random_ids import random_ids
from kvstore.service.store import KVStore
from kvstore.service.tenancy.credentials import Credentials
from kvstore.storage.arenas import Arenas
from kvstore.storage.host.host_memory import HostMemory
from pages.stamped_pages import LAYOUT
from stores.told_succession import ToldSuccession, as_recovered, inherited

EXTENT_SLOTS = 16
TICK_SECONDS = 0.05


class SucceededStore:
    """A store with one server after another. Its memory and its holds outlive each of them.

    To its clients the next server is a process that has the memory of the one before. Only the
    recovery of the cache is left out: it is the same object.
    """

    def __init__(self, folder: Path, *, slots: int = 2 * EXTENT_SLOTS) -> None:
        self.runtime_dir = folder
        self._paths = RuntimeDir(folder)
        self._slots = slots
        self._credentials = Credentials()
        self._server: grpc.Server | None = None
        self._start_store(epoch=5)

    def _start_store(self, epoch: int) -> None:
        self._epoch = epoch
        size = LAYOUT.page_bytes
        self._arenas = Arenas(
            budget_bytes=self._slots * size,
            extent_bytes=EXTENT_SLOTS * size,
            source=HostMemory(),
            extent_ids=random_ids(),
        )
        self.cache = PrefixCache(epoch, Limits(), arena_ids=random_ids())
        self.store = KVStore(self.cache, arenas=self._arenas, clock=MONOTONIC)
        self._processes = Processes()
        self._tickers: list[Ticker] = [
            Reaper(self.store, clock=MONOTONIC, interval=TICK_SECONDS),
            Grower(self.store.growth, clock=MONOTONIC, interval=TICK_SECONDS),
        ]
        for each in self._tickers:
            each.start()

    def _end_store(self) -> None:
        for each in self._tickers:
            each.close()
        self._processes.close()
        self._arenas.close()

    def serve(self, *, outlives: bool = True) -> None:
        """Starts a server."""
        self._lanes = HotLanes(self.store, self._credentials, MONOTONIC)
        self._lanes.start()
        self.store.succession = ToldSuccession(outlives=outlives)
        self._attach = AttachServer(
            self._paths.attach_socket,
            store=self.store,
            credentials=self._credentials,
            clock=MONOTONIC,
            lanes=self._lanes,
            processes=self._processes,
        )
        self._attach.start()
        self._health = Health(SERVICES, {}, clock=MONOTONIC)
        self._paths.grpc_socket.unlink(missing_ok=True)
        features = (FEATURE, IN_FLIGHT, KV_CACHE_GROUPS, STEP)
        sockets = Sockets(self._paths.grpc_socket, self._paths.attach_socket, features=features)
        self._server = build_server(
            self.store,
            self._credentials,
            self._health,
            sockets=sockets,
            version="1.2.3",
            clock=MONOTONIC,
        )
        self._server.start()

    def end(self, cut: Event | None = None) -> None:
        """Ends the server as its death does: all connections break, and calls get no answer.

        Sets ``cut`` once no answer can leave any more.
        """
        server, self._server = self._server, None
        assert server is not None
        stopped = server.stop(None)
        if cut is not None:
            cut.set()
        # Its table ends with the server.
        self._processes = inherited(self._processes)
        self._attach.close()
        self._lanes.close()
        stopped.wait()
        self._health.close()
        as_recovered(self.cache, MONOTONIC())

    def succeed(self, cut: Event | None = None) -> None:
        """Ends the server and starts the next one."""
        self.end(cut)
        self.serve()

    def forget(self) -> None:
        """Replaces the store by one of another epoch, which has nothing, while no server runs."""
        self._end_store()
        self._start_store(self._epoch + 1)

    def close(self) -> None:
        """Ends everything."""
        if self._server is not None:
            self.end()
        self._end_store()
