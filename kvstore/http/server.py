"""The HTTP listener: one thread accepts connections, and each connection has a thread."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from http import HTTPStatus
from threading import Event, Thread
from typing import Self

import structlog

from kvstore.http.address import HttpAddress, is_loopback, parse_address
from kvstore.http.connection import Route, serve
from kvstore.http.connections import Connections
from kvstore.http.response import Response
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Scrapers and browsers send a few requests at a time.
MAX_CONNECTIONS = 16
# Seconds for a request to arrive, and for its response to be read.
PATIENCE = 5.0
# The accepting thread's longest wait, in seconds: it sets ``last_tick`` at least this often.
HEARTBEAT = 1.0
FULL = Response.text("too many connections", HTTPStatus.SERVICE_UNAVAILABLE).to_bytes()


class HttpServer:
    """Answers GET and HEAD at ``address``, from ``start`` to ``close``, or in a ``with`` block.

    ``routes`` are by exact path, without the query. Each runs on its connection's thread, several
    at the same time. An exception in a route gives status 500 and a line in the log. A connection
    serves one request. If too many are open, the oldest that waits for its client is ended. On
    loopback, a request with a Host other than a loopback name is refused.
    """

    def __init__(
        self,
        address: str,
        routes: Mapping[str, Route],
        *,
        clock: Clock,
        name: str = "http",
        max_connections: int = MAX_CONNECTIONS,
        patience: float = PATIENCE,
    ) -> None:
        """``address`` is HOST:PORT; port 0 is any free port. ``name`` names its threads."""
        self.failure_count = 0
        self.last_tick = clock()
        self._address = parse_address(address)
        self._routes = dict(routes)
        self._clock = clock
        self._name = name
        self._patience = patience
        self._own_names = True
        self._connections = Connections(max_connections)
        self._closing = Event()
        self._listener: socket.socket | None = None
        self._thread = Thread(target=self._run, name=f"kvstore-{name}", daemon=True)

    @property
    def address(self) -> HttpAddress:
        """The address of the listener, with its actual port after ``start``."""
        if self._listener is None:
            return self._address
        return self._address._replace(port=self._listener.getsockname()[1])

    def start(self) -> None:
        """Listens, and starts the thread; once. Raises :class:`UnusableHttpAddress`."""
        self._listener = self._address.bind()
        self._listener.settimeout(HEARTBEAT)
        self._own_names = is_loopback(self._listener.getsockname()[0])
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether the accepting thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stops accepting, ends open connections, and waits for them. Once, after ``start``."""
        assert self._listener is not None  # it was started
        self._closing.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()
        for thread in self._connections.end_all():
            thread.join(self._patience)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            self.last_tick = self._clock()
            try:
                self._accept()
            except TimeoutError:
                pass
            except OSError as error:
                # Out of descriptors, or the listener was closed.
                if not self._closing.wait(HEARTBEAT):
                    log.warning("http_accept_failed", why=str(error))
            except Exception:
                self.failure_count += 1
                log.exception("http_failed", failure_count=self.failure_count)

    def _accept(self) -> None:
        assert self._listener is not None  # it was started
        connection, _ = self._listener.accept()
        thread = Thread(
            target=self._serve,
            args=(connection,),
            name=f"kvstore-{self._name}-connection",
            daemon=True,
        )
        try:
            if self._connections.take(connection, thread):
                thread.start()
                return
            connection.settimeout(0)
            with suppress(OSError):
                connection.sendall(FULL)
        except RuntimeError:  # no thread could be started
            log.warning("http_accept_failed", why="no thread to be had")
        self._connections.forget(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            serve(
                connection,
                self._routes,
                self._clock,
                patience=self._patience,
                own_names=self._own_names,
                answering=self._connections.answering(connection),
            )
        finally:
            self._connections.forget(connection)
