"""The HTTP server, and how it ends."""

import asyncio
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn
from starlette.applications import Starlette

from inference_worker.http.drain import Drain
from inference_worker.http.request_deadline import RequestDeadline
from inference_worker.http.settings import GRACE_SECONDS

# For connections that nobody uses, once all that ran has ended.
CLOSE_SECONDS: Final = 2
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class _Server(uvicorn.Server):
    """A server whose signals are somebody else's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield


def listening_socket(host: str, port: int) -> socket.socket:
    """Listen; port 0 is any. Raises ``OSError`` where that cannot be."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=2048)


async def serve_app(
    app: Starlette, listening: socket.socket, *, grace: float = GRACE_SECONDS
) -> None:
    """Serves until SIGTERM or SIGINT; for the main thread.

    Then ``/health`` and whatever is new get 503, what runs ends by itself within ``grace``
    seconds or is ended, a second signal ends it now, and this returns.
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
