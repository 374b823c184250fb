"""The HTTP listener: what it answers, what it refuses, and that nobody keeps it busy."""

import json
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection
from threading import Event, Semaphore

import pytest
import structlog

from kvstore.http import connections
from kvstore.http.request import MAX_HEAD_BYTES, Refused, Request
from kvstore.http.response import Response
from kvstore.http.server import HttpServer
from kvstore.service.clock import MONOTONIC

LIMIT = 30.0


def hello(request: Request) -> Response:
    """Answers what was asked."""
    return Response.json({"path": request.path, **request.query})


def broken(request: Request) -> Response:
    """Fails as a bug would."""
    raise KeyError(request.path)


def elsewhere(request: Request) -> Response:
    """Refuse."""
    raise Refused(HTTPStatus.BAD_REQUEST, f"not {request.path}")


ASKED = b"GET /hello HTTP/1.1\r\nHost: localhost\r\n\r\n"
ROUTES = {"/hello": hello, "/broken": broken}


@pytest.fixture
def serving() -> Iterator[Callable[..., HttpServer]]:
    """Provides a starter of listeners."""
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
    connection = HTTPConnection("127.0.0.1", server.address.port, timeout=LIMIT)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response.status, body, {name.lower(): value for name, value in response.getheaders()}


def test_a_route_answers(serving: Callable[..., HttpServer]) -> None:
    """With its status, its type, and headers that let a browser do little with it."""
    status, body, headers = ask(serving(), "/hello?a=1")
    assert (status, json.loads(body)) == (200, {"path": "/hello", "a": ["1"]})
    assert headers["content-type"] == "application/json"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_head_has_no_body(serving: Callable[..., HttpServer]) -> None:
    """Of a route that there is, and of one that there is not."""
    server = serving()
    for path, status in (("/hello", 200), ("/nothing", 404)):
        said, body, headers = ask(server, path, "HEAD")
        assert (said, body) == (status, b"")
        assert int(headers["content-length"]) > 0


def test_what_there_is_not_is_said(serving: Callable[..., HttpServer]) -> None:
    """A path, a method, and a body that nobody takes."""
    server = serving()
    status, body, _ = ask(server, "/hello/")
    assert (status, body) == (404, b"nothing here: ask for /hello, /broken\n")
    rooted = serving({"/": hello, "/more": hello})
    assert ask(rooted, "/less")[1] == b"nothing here: ask for /\n"
    status, _, headers = ask(server, "/hello", "DELETE")
    assert (status, headers["allow"]) == (405, "GET, HEAD")
    connection = HTTPConnection("127.0.0.1", server.address.port, timeout=LIMIT)
    connection.request("POST", "/hello", b"x" * 50_000)
    assert connection.getresponse().status == 405
    connection.close()


def test_a_route_that_fails_is_a_status_and_a_line(serving: Callable[..., HttpServer]) -> None:
    """And the next request is answered."""
    server = serving({**ROUTES, "/elsewhere": elsewhere})
    with structlog.testing.capture_logs() as lines:
        assert ask(server, "/broken")[0] == 500
    failed = [line["path"] for line in lines if line["event"] == "http_failed"]
    assert failed == ["/broken"]
    assert ask(server, "/elsewhere")[:2] == (400, b"not /elsewhere\n")
    assert ask(server, "/hello")[0] == 200


def test_another_site_s_name_for_this_machine_is_refused(
    serving: Callable[..., HttpServer],
) -> None:
    """On loopback. Where others may connect, they do so by a name of their own."""
    server = serving()
    assert ask(server, "/hello", Host="evil.example")[0] == 421
    assert ask(server, "/hello", Host=f"localhost:{server.address.port}")[0] == 200
    # The same place by a name that is not told to be it.
    otherwise = serving(address="127.1:0")
    assert ask(otherwise, "/hello", Host="evil.example")[0] == 421
    everywhere = serving(address="0.0.0.0:0")
    assert ask(everywhere, "/hello", Host="store.example")[0] == 200


def test_a_head_that_does_not_end_is_refused(serving: Callable[..., HttpServer]) -> None:
    """Too long a one at once, too slow a one when its time is over."""
    server = serving(patience=LIMIT)
    with socket.create_connection(("127.0.0.1", server.address.port), timeout=LIMIT) as long:
        long.sendall(b"GET /hello HTTP/1.1\r\n" + b"X: y\r\n" * 2000)
        assert long.recv(1000).startswith(b"HTTP/1.1 431 ")
    # By little, and whole.
    assert ask(server, "/hello", X="y" * MAX_HEAD_BYTES)[0] == 431
    hasty = serving(patience=0.2)
    with socket.create_connection(("127.0.0.1", hasty.address.port), timeout=LIMIT) as slow:
        slow.sendall(b"GET /hello")
        assert slow.recv(1000).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("said", [b"", b"GET /hello HTTP/1.1\r\n", ASKED])
def test_whoever_is_waited_for_keeps_nobody_out(
    serving: Callable[..., HttpServer], monkeypatch: pytest.MonkeyPatch, said: bytes
) -> None:
    """Silent, slow, or done and still there: the oldest of them makes room for who comes."""
    monkeypatch.setattr(connections, "ROOM_PATIENCE", LIMIT)
    server = serving(max_connections=2, patience=LIMIT)
    address = "127.0.0.1", server.address.port
    holding = [socket.create_connection(address, timeout=LIMIT) for _ in range(2)]
    for each in holding:
        each.sendall(said)
        if said == ASKED:  # until its answer is there, it is not the client who is waited for
            assert each.recv(1000).startswith(b"HTTP/1.1 200 ")
    for _ in range(3):
        assert ask(server, "/hello")[0] == 200
    for each in holding:
        each.close()


def test_whoever_is_answered_is_left_alone(serving: Callable[..., HttpServer]) -> None:
    """Where all are, one connection too many is told so at once."""
    called, going = Semaphore(0), Event()

    def slow(request: Request) -> Response:
        del request
        called.release()
        assert going.wait(LIMIT)
        return Response.text("at last")

    server = serving({"/slow": slow}, max_connections=2, patience=LIMIT)
    address = "127.0.0.1", server.address.port
    asking = [HTTPConnection(*address, timeout=LIMIT) for _ in range(2)]
    for each in asking:
        each.request("GET", "/slow")
        assert called.acquire(timeout=LIMIT)
    with socket.create_connection(address, timeout=LIMIT) as one_too_many:
        assert one_too_many.recv(1000).startswith(b"HTTP/1.1 503 ")
    going.set()
    for each in asking:
        assert each.getresponse().read() == b"at last\n"
        each.close()


def test_its_end_does_not_wait_for_who_is_connected(serving: Callable[..., HttpServer]) -> None:
    """A request that has not come whole is given up, and the port is given back."""
    clock = MONOTONIC
    server = HttpServer("127.0.0.1:0", ROUTES, clock=clock, patience=LIMIT)
    with server:
        port = server.address.port
        began = clock()
        silent = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
        silent.sendall(b"GET")
        assert ask(server, "/hello")[0] == 200
    assert clock() - began < LIMIT
    assert silent.recv(1) == b""
    silent.close()
    assert serving(address=f"127.0.0.1:{port}").address.port == port


def test_one_that_takes_its_time_holds_up_nobody(serving: Callable[..., HttpServer]) -> None:
    """Routes are called beside each other, and its watcher sees it get round."""
    going = Event()

    def slow(request: Request) -> Response:
        del request
        assert going.wait(LIMIT)
        return Response.text("at last")

    server = serving({**ROUTES, "/slow": slow})
    connection = HTTPConnection("127.0.0.1", server.address.port, timeout=LIMIT)
    connection.request("GET", "/slow")
    before = server.last_tick
    assert ask(server, "/hello")[0] == 200
    assert ask(server, "/hello")[0] == 200
    assert server.last_tick > before
    assert server.is_alive()
    going.set()
    assert connection.getresponse().read() == b"at last\n"
    connection.close()
