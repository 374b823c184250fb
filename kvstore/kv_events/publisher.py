"""The thread that publishes KV events: one endpoint for each tenant."""

from collections.abc import Callable, Mapping
from pathlib import Path
from threading import Event, Thread
from time import time

import structlog
import zmq

from kvstore.kv_events.curve import CurveAccess
from kvstore.kv_events.curve_keys import CurveKeys
from kvstore.kv_events.endpoints import (
    IPC,
    TCP,
    Endpoint,
    UnusableEndpoint,
    endpoint_at,
    endpoint_in,
)
from kvstore.kv_events.replay_buffer import MOST_BATCHES
from kvstore.kv_events.sequence_numbers import SequenceNumbers
from kvstore.kv_events.tenant_stream import EventSockets, Settings, TenantStream
from kvstore.kv_events.wire import Wire
from kvstore.service.block_feed import BlockFeed, KvEventUse
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Seconds without a change after which the thread looks for requests. vLLM's waits as long.
LOOK_SECONDS = 0.1
# Seconds in which changes are gathered: most of a batch's cost is that of a message.
GATHER_SECONDS = 0.01
# Seconds of rest after a failure, such as a full disk.
FAILED_SECONDS = 1.0
# Batches that wait for a consumer. Further ones are dropped, and it asks for them later.
MOST_WAITING = MOST_BATCHES
# Milliseconds in which a closed socket still sends.
LINGER = 200
FOLDER_MODE = 0o700


class KvEventPublisher:
    """Publishes the KV events of all tenants of a store, on a thread of its own.

    A tenant's endpoint is bound once it has blocks, or at the start for those of ``addresses``.
    No consumer delays the store, nor another consumer. ``last_tick`` and ``failure_count`` are for
    health.
    """

    def __init__(
        self,
        feed: BlockFeed,
        *,
        wire: Callable[[], Wire],
        numbers: SequenceNumbers,
        clock: Clock,
        folder: Path,
        addresses: Mapping[str, str],
        settings: Settings,
        curve: CurveKeys | None = None,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        """``addresses`` are those of some tenants; others get sockets in ``folder``.

        With ``curve`` only known consumers connect over TCP.

        Raises :class:`UnusableEndpoint`.
        """
        self.failure_count = 0
        self._feed = feed
        self._wire = wire
        self._numbers = numbers
        self._clock = clock
        self._wall_clock = wall_clock
        self._folder = folder
        self._addresses = addresses
        self._settings = settings
        self._ticked_at = clock()
        self._closing = Event()
        self._context = zmq.Context()
        self._curve = None if curve is None else CurveAccess(self._context, curve)
        self._streams: dict[str, TenantStream] = {}
        self._refused: set[str] = set()
        try:
            for tenant in addresses:
                self._open(tenant)
        except UnusableEndpoint:
            self._close_sockets()
            raise
        self._thread = Thread(target=self._run, name="kvstore-kv-events", daemon=True)

    @property
    def last_tick(self) -> float:
        """The clock's time at the last complete round."""
        return self._ticked_at

    def is_alive(self) -> bool:
        """Returns whether the thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread. Must be called once."""
        self._thread.start()

    def use(self) -> list[KvEventUse]:
        """Returns the counts of each tenant. Any thread may ask."""
        return [each.use() for each in list(self._streams.values())]

    def close(self) -> None:
        """Stops the thread, publishes what waits, and closes the sockets."""
        self._closing.set()
        self._feed.due.set()
        self._thread.join()
        self._close_sockets()

    def _run(self) -> None:
        more = False
        while not self._closing.is_set():
            if not more and self._feed.due.wait(LOOK_SECONDS):
                self._closing.wait(GATHER_SECONDS)
            self._feed.due.clear()
            more = self._round()
            self._ticked_at = self._clock()

    def _round(self) -> bool:
        """Publishes what waits, of each tenant. Returns True if more is to be done at once."""
        more = False
        if self._curve is not None:
            self._curve.answer()
        for tenant in self._feed.tenants() - self._streams.keys() - self._refused:
            self._open_late(tenant)
        for stream in self._streams.values():
            try:
                more |= stream.step()
            except Exception:
                # What it took may be lost.
                stream.begin_anew("failure")
                self.failure_count += 1
                log.exception("kv_events_failed", failure_count=self.failure_count)
                self._closing.wait(FAILED_SECONDS)
        return more

    def _open_late(self, tenant: str) -> None:
        try:
            self._open(tenant)
        except UnusableEndpoint as error:
            self._refused.add(tenant)
            log.error("kv_events_unusable", tenant=tenant, why=str(error))  # noqa: TRY400 - the reason is the message

    def _open(self, tenant: str) -> None:
        address = self._addresses.get(tenant)
        if address is None:
            self._folder.mkdir(mode=FOLDER_MODE, exist_ok=True)
            wanted = endpoint_in(self._folder, tenant)
        else:
            wanted = endpoint_at(address)
        sockets = self._bind(wanted, tenant)
        self._streams[tenant] = TenantStream(
            tenant,
            sockets,
            feed=self._feed,
            wire=self._wire(),
            numbers=self._numbers,
            clock=self._clock,
            wall_clock=self._wall_clock,
            settings=self._settings,
        )
        log.info(
            "kv_events_published",
            tenant=tenant,
            endpoint=sockets.endpoint.events,
            replay_endpoint=sockets.endpoint.replay,
            first_number=self._numbers.first,
            curve_server="" if self._curve is None else self._curve.server_name,
        )

    def _bind(self, wanted: Endpoint, tenant: str) -> EventSockets:
        events, replay = self._context.socket(zmq.PUB), self._context.socket(zmq.ROUTER)
        events.sndhwm = MOST_WAITING
        # A whole replay fits, and its end. What a consumer does not read of a second one is lost.
        replay.sndhwm = MOST_BATCHES + 1
        bound = []
        for socket, address in ((events, wanted.events), (replay, wanted.replay)):
            socket.linger = LINGER
            if self._curve is not None and address.startswith(TCP):
                self._curve.protect(socket, tenant)
            try:
                socket.bind(address)
            except zmq.ZMQError as error:
                events.close()
                replay.close()
                raise UnusableEndpoint(f"kv_events_bind {address}: {error.strerror}") from error
            # It names the port that was chosen.
            bound.append(address if address.startswith(IPC) else _last_endpoint(socket))
        return EventSockets(events, replay, Endpoint(*bound))

    def _close_sockets(self) -> None:
        for stream in self._streams.values():
            stream.close()
        if self._curve is not None:
            self._curve.close()
        self._context.term()


def _last_endpoint(socket: "zmq.Socket[bytes]") -> str:
    return socket.getsockopt_string(zmq.LAST_ENDPOINT).rstrip("\0")
