"""One HTTP connection: one request and one response, within a timeout."""

import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from http import HTTPStatus
from typing import TypeAlias

import structlog

from kvstore.http.address import may_be_named
from kvstore.http.request import END_OF_HEAD, MAX_HEAD_BYTES, Refused, Request, parse_request
from kvstore.http.response import Response
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

Route: TypeAlias = Callable[[Request], Response]

# The route that links to the others, if it exists.
ROOT = "/"
# Seconds to read the rest of a refused request. Closing the connection earlier would reset it, and
# the client would lose the response.
LINGER = 1.0
MAX_LINGER_BYTES = 64 << 10


def serve(
    connection: socket.socket,
    routes: Mapping[str, Route],
    clock: Clock,
    *,
    patience: float,
    own_names: bool,
    answering: AbstractContextManager[None],
) -> None:
    """Answers a connection's request; raises nothing. The caller closes the connection.

    ``patience`` is the timeout in seconds for the request, and again for the response.
    ``own_names`` requires a loopback name as Host. ``answering`` is entered while a route makes
    the response.
    """
    with suppress(OSError):
        try:
            request = parse_request(_head(connection, clock, clock() + patience))
        except Refused as refused:
            sent = _refusal(refused).to_bytes()
        else:
            answer = _elsewhere(request) if own_names else None
            if answer is None:
                with answering:
                    answer = _answer(request, routes)
            sent = answer.to_bytes(with_body=request.method != "HEAD")
        connection.settimeout(patience)
        connection.sendall(sent)
        _end(connection, clock)


def _elsewhere(request: Request) -> Response | None:
    if may_be_named(request.headers["host"]):
        return None
    return Response.text("ask for localhost, or 127.0.0.1", HTTPStatus.MISDIRECTED_REQUEST)


def _answer(request: Request, routes: Mapping[str, Route]) -> Response:
    route = routes.get(request.path)
    if route is None:
        return _nothing(routes)
    try:
        return route(request)
    except Refused as refused:
        return _refusal(refused)
    except Exception:
        path = request.path
        log.exception("http_failed", path=path)
        return Response.text("failed: see the log", HTTPStatus.INTERNAL_SERVER_ERROR)


def _nothing(routes: Mapping[str, Route]) -> Response:
    begin = ROOT if ROOT in routes else ", ".join(routes)
    return Response.text(f"nothing here: ask for {begin}", HTTPStatus.NOT_FOUND)


def _refusal(refused: Refused) -> Response:
    return Response(f"{refused.why}\n".encode(), status=refused.status, headers=refused.headers)


def _head(connection: socket.socket, clock: Clock, due: float) -> bytes:
    """Returns a request up to and including its empty line."""
    received = b""
    while END_OF_HEAD not in received:
        if len(received) > MAX_HEAD_BYTES:
            raise Refused(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too long")
        left = due - clock()
        if left <= 0:
            raise Refused(HTTPStatus.REQUEST_TIMEOUT, "too slow")
        connection.settimeout(left)
        try:
            data = connection.recv(MAX_HEAD_BYTES + 1 - len(received))
        except TimeoutError:
            continue
        if not data:
            raise ConnectionResetError
        received += data
    return received[: received.index(END_OF_HEAD) + len(END_OF_HEAD)]


def _end(connection: socket.socket, clock: Clock) -> None:
    connection.shutdown(socket.SHUT_WR)
    due, left_bytes = clock() + LINGER, MAX_LINGER_BYTES
    while left_bytes > 0 and (left := due - clock()) > 0:
        connection.settimeout(left)
        data = connection.recv(left_bytes)
        if not data:
            return
        left_bytes -= len(data)
