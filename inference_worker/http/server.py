"""Runs the HTTP application in uvicorn, and ends it."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from inference_worker.http.connection import Drain
from inference_worker.http.settings import GRACE_SECONDS

# Seconds from a connection's begin, or from the answer before, to the end of a request's head.
HEAD_SECONDS: Final = 30.0


class RequestDeadline(H11Protocol):
    """uvicorn's protocol, with a timeout for a request's head.

    uvicorn waits for a first request, or the end of a head, without limit. Many such connections
    would lock out other clients.
    """

    _closing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timeout for the first request."""
        super().connection_made(transport)
        self._begin()

    def on_response_complete(self) -> None:
        """Starts the timeout for the next request."""
        super().on_response_complete()
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancels the timeout."""
        if self._closing is not None:
            self._closing.cancel()
        super().connection_lost(exc)

    def _begin(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
        self._closing = self.loop.call_later(HEAD_SECONDS, self._close_unasked)

    def _close_unasked(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.close()


# Seconds for idle connections to close, once all requests have ended.
CLOSE_SECONDS: Final = 2
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its caller."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def listening_socket(host: str, port: int) -> socket.socket:
    """Returns a listening socket; port 0 picks a free one. Raises ``OSError`` on failure."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


async def serve_app(
    app: Starlette, listening: socket.socket, *, grace: float = GRACE_SECONDS
) -> None:
    """Serves until SIGTERM or SIGINT; for the main thread.

    After the signal, ``/health`` and new requests get 503. Running requests end by themselves
    within ``grace`` seconds or are ended. A second signal ends them now.
    """
    loop = asyncio.get_running_loop()
    config = uvicorn.Config(
        app,
        http=RequestDeadline,
        log_config=None,
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=CLOSE_SECONDS,
    )
    server = _Server(config)
    drain: Drain = app.state.drain
    told = asyncio.Event()

    def stop() -> None:
        if told.is_set():
            drain.over.set()
        told.set()

    for each in STOP_SIGNALS:
        loop.add_signal_handler(each, stop)
    serving = asyncio.create_task(server.serve([listening]))
    waiting = asyncio.create_task(told.wait())
    try:
        await asyncio.wait((serving, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await drain.drain(grace)
            server.should_exit = True
        await serving
    finally:
        waiting.cancel()
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)
