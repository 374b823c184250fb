"""One connection of HTTP: one request, one response, within a time."""

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

# Where there is one, it leads to the others.
ROOT = "/"
# Seconds in which the rest of a request that was refused may still come: a connection that is
# closed before would be reset, and the response lost.
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
    """Answers a connection's request; raises nothing. Whoever calls closes the connection.

    ``patience`` is how many seconds its request may take to come, and as many its
    response to be taken. ``own_names``: a request has to name this machine (its Host).
    ``answering`` is entered while a route makes the answer.
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
    """Returns a request up to its empty line, that included."""
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
