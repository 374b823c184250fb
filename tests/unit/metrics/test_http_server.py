"""The HTTP server: its answers and refusals, and that no client keeps it busy."""

import re
import socket
from collections.abc import Callable, Iterator
from functools import partial
from http.client import HTTPConnection
from queue import Queue
from threading import Event, Semaphore, Thread, current_thread

import pytest
import structlog
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvstore.metrics import http_server
from kvstore.metrics.http_server import MAX_HEAD_BYTES, HttpServer, Response, UnusableHttpAddress
from kvstore.service.clock import MONOTONIC

LIMIT = 30.0
ASKED = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"


def hello(accept: str) -> Response:
    """Answers with what the client accepts."""
    return Response(accept.encode(), "text/special")


def broken(accept: str) -> Response:
    """Fails as a bug would."""
    raise KeyError(accept)


ROUTES = {"/hello": hello, "/broken": broken}


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., HttpServer]]:
    """Provides a starter of servers."""
    monkeypatch.setattr(http_server, "HEARTBEAT", 0.02)
    running: list[HttpServer] = []

    def start(routes: object = ROUTES, **settings: object) -> HttpServer:
        address = str(settings.pop("address", "127.0.0.1:0"))
        server = HttpServer(address, routes, clock=MONOTONIC, **settings)  # type: ignore[arg-type]
        server.start()
        running.append(server)
        return server

    yield start
    for each in running:
        each.close()
        assert not each.is_alive()


def ask(
    server: HttpServer, path: str, method: str = "GET", **headers: str
) -> tuple[int, bytes, dict[str, str]]:
    """Returns a response's status, body and headers."""
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body, {name.lower(): value for name, value in response.getheaders()}


def connect(server: HttpServer) -> socket.socket:
    """Returns a connection to a server."""
    return socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT)


def answer_to(server: HttpServer, sent: bytes) -> bytes:
    """Returns all that a server answers to some bytes."""
    with connect(server) as connection:
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        return b"".join(iter(partial(connection.recv, 4096), b""))


def test_a_route_answers(serving: Callable[..., HttpServer]) -> None:
    """An answer has its type, and headers by which a browser keeps and guesses nothing."""
    status, body, headers = ask(serving(), "/hello?a=1", Accept="x")
    assert (status, body) == (200, b"x")
    assert headers["content-type"] == "text/special"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["connection"] == "close"
    assert headers["server"] == "kvstore"


def test_a_head_has_no_body(serving: Callable[..., HttpServer]) -> None:
    """It has the length of the body that a GET gets."""
    server = serving()
    for path, status in (("/hello", 200), ("/nothing", 404)):
        found, body, headers = ask(server, path, "HEAD", Accept="x")
        assert (found, body) == (status, b"")
        assert int(headers["content-length"]) > 0


def test_other_paths_and_methods_are_refused(serving: Callable[..., HttpServer]) -> None:
    """A refused request's body is not read, and its client gets the answer all the same."""
    server = serving()
    status, body, _ = ask(server, "/hello/")
    assert (status, body) == (404, b"nothing here: ask for /hello, /broken\n")
    assert ask(server, "/hello", "DELETE")[0] == 501
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    connection.request("POST", "/hello", b"x" * 50_000)
    assert connection.getresponse().status == 501
    connection.close()


def test_a_route_that_fails_is_a_status_and_a_line(serving: Callable[..., HttpServer]) -> None:
    """The next request is answered."""
    server = serving()
    with structlog.testing.capture_logs() as lines:
        assert ask(server, "/broken")[:2] == (500, b"failed: see the log\n")
    failed = [line["path"] for line in lines if line["event"] == "http_failed"]
    assert failed == ["/broken"]
    assert ask(server, "/hello")[0] == 200


@pytest.mark.parametrize("port", ["", ":1", ":7401"])
@pytest.mark.parametrize("host", ["localhost", "LocalHost", "127.0.0.1", "127.9.9.9", "[::1]"])
def test_a_loopback_name_is_accepted(
    serving: Callable[..., HttpServer], host: str, port: str
) -> None:
    """With or without a port."""
    assert ask(serving(), "/hello", Host=host + port)[0] == 200


@pytest.mark.parametrize(
    "host",
    ["", "evil.example:7401", "127.0.0.1.example", "localhost.example:80", "127.0.0.1:80:80"],
)
def test_another_name_is_refused_on_loopback(serving: Callable[..., HttpServer], host: str) -> None:
    """A web site's name may lead to this host. On other addresses every name is accepted."""
    assert ask(serving(), "/hello", Host=host)[0] == 421
    # 127.1 is loopback too.
    assert ask(serving(address="127.1:0"), "/hello", Host=host)[0] == 421
    assert ask(serving(address="0.0.0.0:0"), "/hello", Host=host)[0] == 200


def test_an_address_that_cannot_be_bound_is_an_error_that_names_it() -> None:
    """An address may be in use, or of another machine."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(UnusableHttpAddress, match=rf"{re.escape(address)} .* in use"):
            HttpServer(address, ROUTES, clock=MONOTONIC)
    with pytest.raises(UnusableHttpAddress, match=r"192\.0\.2\.1:80"):
        HttpServer("192.0.2.1:80", ROUTES, clock=MONOTONIC)


def test_it_listens_on_ipv6(serving: Callable[..., HttpServer]) -> None:
    """The address is in brackets."""
    try:
        server = serving(address="[::1]:0")
    except UnusableHttpAddress as error:
        pytest.skip(f"needs ::1: {error}")
    assert server.host == "::1"
    assert server.is_loopback


@pytest.mark.parametrize(
    ("request_head", "status"),
    [
        (b"GET /hello HTTP/2.0\r\nHost: localhost\r\n\r\n", b"505"),
        (b"GET /hello and more HTTP/1.1\r\n\r\n", b"400"),
        (b"GET http://localhost/hello HTTP/1.1\r\nHost: localhost\r\n\r\n", b"404"),
        (b"get /hello HTTP/1.1\r\nHost: localhost\r\n\r\n", b"501"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * MAX_HEAD_BYTES, b"431"),
    ],
)
def test_nonsense_is_refused(
    serving: Callable[..., HttpServer], request_head: bytes, status: bytes
) -> None:
    """Each refusal has a status that says whose fault it is."""
    assert answer_to(serving(), request_head).startswith(b"HTTP/1.1 " + status)


@pytest.fixture
def server(serving: Callable[..., HttpServer]) -> HttpServer:
    """Provides one server."""
    return serving()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(server: HttpServer, data: bytes) -> None:
    """A request is answered or refused, whatever it has, and nothing is raised."""
    with structlog.testing.capture_logs() as lines:
        for line in (data, b"GET /hello HTTP/1.1\r\nHost: localhost\r\n" + data, b"GET /" + data):
            answer_to(server, line + b"\r\n\r\n")
        assert answer_to(server, ASKED).startswith(b"HTTP/1.1 200")
    assert lines == []
    assert server.failure_count == 0


def test_a_head_that_is_late_or_too_long_is_refused(serving: Callable[..., HttpServer]) -> None:
    """The first is closed when its time is over, also if its bytes come one by one."""
    server = serving(patience=LIMIT)
    assert ask(server, "/hello", X="y" * MAX_HEAD_BYTES)[0] == 431
    with connect(serving(patience=0.2)) as slow:
        slow.sendall(b"GET /hello")
        assert slow.recv(1000) == b""


@pytest.mark.parametrize("sent", [b"", b"GET /hello HTTP/1.1\r\n", ASKED])
def test_whoever_is_waited_for_keeps_nobody_out(
    serving: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The oldest connection that waits for its client makes room for a new one."""
    monkeypatch.setattr(http_server, "ROOM_PATIENCE", LIMIT)
    server = serving(max_connections=2, patience=LIMIT)
    holding = [connect(server) for _ in range(2)]
    for each in holding:
        each.sendall(sent)
        if sent == ASKED:  # the server waits for the client once its answer is there
            assert each.recv(1000).startswith(b"HTTP/1.1 200 ")
    for _ in range(3):
        assert ask(server, "/hello")[0] == 200
    for each in holding:
        each.close()


def test_whoever_is_answered_is_left_alone(serving: Callable[..., HttpServer]) -> None:
    """If all connections are being answered, one more gets 503 at once."""
    called, going = Semaphore(0), Event()

    def slow(accept: str) -> Response:
        del accept
        called.release()
        assert going.wait(LIMIT)
        return Response(b"at last")

    server = serving({"/slow": slow}, max_connections=2, patience=LIMIT)
    asking = [HTTPConnection("127.0.0.1", server.port, timeout=LIMIT) for _ in range(2)]
    for each in asking:
        each.request("GET", "/slow")
        assert called.acquire(timeout=LIMIT)
    with connect(server) as one_too_many:
        assert one_too_many.recv(1000).startswith(b"HTTP/1.1 503 ")
    going.set()
    for each in asking:
        assert each.getresponse().read() == b"at last"
        each.close()


def test_its_end_does_not_wait_for_who_is_connected() -> None:
    """An unfinished request is given up, and the port can be bound again."""
    server = HttpServer("127.0.0.1:0", ROUTES, clock=MONOTONIC, patience=LIMIT)
    server.start()
    began = MONOTONIC()
    silent = connect(server)
    silent.sendall(b"GET")
    assert ask(server, "/hello")[0] == 200
    server.close()
    assert MONOTONIC() - began < LIMIT
    assert silent.recv(1) == b""
    silent.close()
    HttpServer(f"127.0.0.1:{server.port}", ROUTES, clock=MONOTONIC).server_close()


def test_its_end_waits_a_bounded_time_for_a_route_that_hangs() -> None:
    """The thread of such a route does not keep the process alive either."""
    called: Queue[Thread] = Queue()
    going = Event()

    def hanging(accept: str) -> Response:
        del accept
        called.put(current_thread())
        going.wait(LIMIT)
        return Response(b"too late")

    server = HttpServer("127.0.0.1:0", {"/slow": hanging}, clock=MONOTONIC, patience=0.1)
    server.start()
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    connection.request("GET", "/slow")
    thread = called.get(timeout=LIMIT)
    began = MONOTONIC()
    server.close()
    assert MONOTONIC() - began < LIMIT / 2
    assert thread.is_alive()
    assert thread.daemon
    going.set()
    thread.join(LIMIT)
    connection.close()


def test_a_slow_route_delays_no_other(serving: Callable[..., HttpServer]) -> None:
    """Routes run beside each other, and the accepting thread ticks meanwhile."""
    going = Event()

    def slow(accept: str) -> Response:
        del accept
        assert going.wait(LIMIT)
        return Response(b"at last")

    server = serving({**ROUTES, "/slow": slow})
    connection = HTTPConnection("127.0.0.1", server.port, timeout=LIMIT)
    connection.request("GET", "/slow")
    before = server.last_tick
    assert ask(server, "/hello")[0] == 200
    assert ask(server, "/hello")[0] == 200
    assert server.last_tick > before
    assert server.is_alive()
    going.set()
    assert connection.getresponse().read() == b"at last"
    connection.close()
