"""The HTTP server of metrics and probes: the standard library's, with bounds."""

import ipaddress
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from io import BytesIO
from math import inf
from socketserver import ThreadingTCPServer
from threading import Condition, Thread
from time import sleep
from typing import Any, Final, NamedTuple, TypeAlias

import structlog

from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

TEXT: Final = "text/plain; charset=utf-8"
# Scrapers and probes send a few requests at a time.
MAX_CONNECTIONS: Final = 16
MAX_HEAD_BYTES: Final = 8 << 10
END_OF_HEAD: Final = b"\r\n\r\n"
FULL: Final = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\n\r\n"
# Seconds for a request to arrive, and for its answer to be taken.
PATIENCE: Final = 5.0
# Seconds to wait until an ended connection is closed.
ROOM_PATIENCE: Final = 1.0
# The accepting thread's longest wait, in seconds: it sets ``last_tick`` at least this often.
HEARTBEAT: Final = 0.5
# Seconds between two accepts while the process has no free descriptor.
PAUSE: Final = 1.0


class UnusableHttpAddress(Exception):
    """The address cannot be bound: it is in use, or not an address of this host."""


class Response(NamedTuple):
    """A route's answer."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK


# Returns the answer for the value of a request's Accept header.
Route: TypeAlias = Callable[[str], Response]


class _Handler(BaseHTTPRequestHandler):
    """Answers the one request of a connection."""

    server: "HttpServer"
    protocol_version = "HTTP/1.1"
    # The library's default, HTTP/0.9, would leave the status out of a refusal.
    default_request_version = "HTTP/1.0"
    error_content_type = TEXT
    error_message_format = "%(message)s\n"

    def handle(self) -> None:
        """Reads the request's head and answers it. The server ends a connection that is late."""
        head = b""
        while END_OF_HEAD not in head and len(head) < MAX_HEAD_BYTES:
            data = self.connection.recv(MAX_HEAD_BYTES - len(head))
            if not data:
                return
            head += data
        self.rfile = BytesIO(head)
        if END_OF_HEAD in head:
            self.handle_one_request()
        else:
            self.command, self.requestline, self.request_version = "", "", self.protocol_version
            self.send_error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        # To close with unread data would reset the connection, and the client lose its answer.
        self.connection.shutdown(socket.SHUT_WR)
        while self.connection.recv(MAX_HEAD_BYTES):
            pass

    def do_GET(self) -> None:
        """Answers with what the path's route returns."""
        if self.server.is_loopback and not _is_loopback_name(self.headers.get("Host", "")):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST, "ask for localhost, or 127.0.0.1")
            return
        path = self.path.partition("?")[0]
        route = self.server.routes.get(path)
        if route is None:
            there = ", ".join(self.server.routes)
            self.send_error(HTTPStatus.NOT_FOUND, f"nothing here: ask for {there}")
            return
        try:
            with self.server.answering(self.connection):
                answer = route(self.headers.get("Accept", ""))
        except Exception:
            log.exception("http_failed", path=path)
            self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "failed: see the log")
            return
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - the library's name

    def end_headers(self) -> None:
        """Adds what every answer has."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("Connection", "close")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def version_string(self) -> str:
        """Returns the server's name, without the versions that the library would add."""
        return "kvstore"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
        """Writes nothing: a scrape a second is not worth a line."""


class HttpServer(ThreadingTCPServer):
    """Answers GET and HEAD at ``address``, from ``start`` to ``close``.

    ``routes`` are by exact path, without the query. Each runs on its connection's thread, several
    at the same time. An exception in a route gives status 500 and a line in the log. If too many
    connections are open, the oldest that waits for its client is ended. On loopback, a request with
    a Host other than a loopback name is refused: another site's page can make a browser connect to
    127.0.0.1 by that site's name (DNS rebinding), and the browser sends that name as the Host.
    """

    allow_reuse_address = True
    # The library would wait without a bound for a route that hangs, and so would the process.
    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(
        self,
        address: str,
        routes: Mapping[str, Route],
        *,
        clock: Clock,
        max_connections: int = MAX_CONNECTIONS,
        patience: float = PATIENCE,
    ) -> None:
        """Listens at HOST:PORT, of which port 0 is any free one. An IPv6 address is in brackets.

        Raises :class:`UnusableHttpAddress`.
        """
        self.routes = dict(routes)
        self.failure_count = 0
        self.last_tick = clock()
        self._clock = clock
        self._most = max_connections
        self._patience = patience
        self._changed = Condition()
        # The time at which each connection is ended, the oldest connection first.
        self._open: dict[socket.socket, float] = {}
        self._thread = Thread(
            target=self.serve_forever, args=(HEARTBEAT,), name="kvstore-metrics", daemon=True
        )
        host, _, port = address.rpartition(":")
        try:
            self.address_family, _, _, _, where = socket.getaddrinfo(
                host.strip("[]"), int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            super().__init__(where, _Handler)  # type: ignore[arg-type] # IPv6 has four parts
        except OSError as error:
            why = error.strerror or error
            raise UnusableHttpAddress(f"{address} cannot be listened on for HTTP: {why}") from None
        self.host, self.port = self.socket.getsockname()[:2]
        self.is_loopback = _is_loopback(self.host)

    def start(self) -> None:
        """Starts the thread that accepts. Must be called once."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether the accepting thread runs."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Stops accepting, ends open connections, and waits for them. Once, after ``start``.

        A route that hangs gets ``patience`` seconds to end.
        """
        self.shutdown()
        self._thread.join()
        self.server_close()
        with self._changed:
            for each in self._open:
                _end(each)
            self._changed.wait_for(lambda: not self._open, self._patience)

    @contextmanager
    def answering(self, connection: socket.socket) -> Iterator[None]:
        """Protects a connection while the block makes its answer."""
        with self._changed:
            self._open[connection] = inf
        try:
            yield
        finally:
            with self._changed:
                self._open[connection] = self._clock() + self._patience

    def service_actions(self) -> None:
        """Ends connections that are late. The accepting thread calls it at each heartbeat."""
        self.last_tick = now = self._clock()
        with self._changed:
            for each in [each for each, due in self._open.items() if due <= now]:
                _end(each)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Accepts a connection. Without a free descriptor it waits, as the library would not."""
        try:
            return super().get_request()
        except OSError as error:
            log.warning("http_accept_failed", why=str(error))
            sleep(PAUSE)
            raise

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ANN401
        """Adds a connection. Returns False if there is no room and no connection can be ended."""
        del client_address
        with self._changed:
            if len(self._open) >= self._most:
                oldest = next((each for each, due in self._open.items() if due < inf), None)
                if oldest is not None:
                    _end(oldest)
                    self._changed.wait_for(lambda: len(self._open) < self._most, ROOM_PATIENCE)
            if len(self._open) < self._most:
                self._open[request] = self._clock() + self._patience
                return True
        request.settimeout(0)
        with suppress(OSError):
            request.sendall(FULL)
        return False

    def shutdown_request(self, request: Any) -> None:  # noqa: ANN401 - the library's type
        """Closes a connection and removes it."""
        with self._changed:
            self._open.pop(request, None)
            super().shutdown_request(request)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401
        """Logs an exception, unless its cause is that the client went away."""
        del request, client_address
        error = sys.exception()
        if not isinstance(error, OSError):
            self.failure_count += 1
            log.error("http_failed", failure_count=self.failure_count, exc_info=error)


def _end(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


def _is_loopback(host: str) -> bool:
    """Returns whether a host, by name or number, is on the loopback interface."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _is_loopback_name(header: str) -> bool:
    """Returns whether a request's Host header is a loopback name, with or without a port."""
    host, colon, port = header.rpartition(":")
    named = host if colon and port.isdecimal() else header
    return _is_loopback(named.removeprefix("[").removesuffix("]"))
