"""Engines behind an HTTP server: starts both, and stops both on a signal."""

import asyncio
import logging
import signal
import socket
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeVar

import typer

from inference_worker.fleet.fleet import Fleet
from inference_worker.fleet.protocol import EngineSettings
from inference_worker.http.app import build_app
from inference_worker.http.server import listening_socket, serve_app
from inference_worker.http.settings import HttpSettings, served_model
from inference_worker.model.tokenizer import load_tokenizer
from inference_worker.store.own_store import ServeStore, StoreOptions

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# A shell's status for a process that a signal ended is this plus the signal.
SIGNAL_STATUS = 128
T = TypeVar("T")
log = logging.getLogger(__name__)


def serve_engines(
    engines: Sequence[EngineSettings],
    store: StoreOptions,
    http: HttpSettings,
    *,
    host: str,
    port: int,
    grace: float,
) -> None:
    """Serves engines at a host and port until SIGTERM or SIGINT; for the main thread.

    Running requests get ``grace`` seconds after the signal. Raises ``OSError`` if the server cannot
    listen on the address.
    """
    with listening_socket(host, port) as listening:
        asyncio.run(_serve(engines, store, http, listening, grace))


async def _serve(
    engines: Sequence[EngineSettings],
    store_options: StoreOptions,
    http: HttpSettings,
    listening: socket.socket,
    grace: float,
) -> None:
    async with AsyncExitStack() as stack:
        store = ServeStore(store_options)
        stack.push_async_callback(store.close)
        fleet = Fleet(engines, store.find)
        stack.push_async_callback(fleet.close)
        loaded = await unless_signalled(fleet.start())
        tokenizer = load_tokenizer(Path(loaded.folder))
        if store_options.used and not (await fleet.stats()).engines_attached:
            log.warning("no store at %s: computing without", store.path)
        if store_options.used and store_options.start:
            log.info("to watch its store: KVSTORE_RUNTIME_DIR=%s kvstore-ctl top", store.path)
        name = engines[0].model
        model = served_model(name, tokenizer, frozenset(loaded.end_ids), loaded.longest)
        where = listening.getsockname()
        shown = f"[{where[0]}]" if ":" in where[0] else where[0]
        log.info("serving %s at http://%s:%d", name, shown, where[1])
        await serve_app(build_app(fleet, model, http), listening, grace=grace)


async def unless_signalled(starting: Coroutine[Any, Any, T]) -> T:
    """Awaits a start; if a stop signal arrives first, exits with a shell's status for it."""
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(starting)
    status = 0

    def stop(number: signal.Signals) -> None:
        nonlocal status
        status = SIGNAL_STATUS + number
        task.cancel()

    for each in STOP_SIGNALS:
        loop.add_signal_handler(each, stop, each)
    try:
        return await task
    except asyncio.CancelledError:
        raise typer.Exit(status) from None
    finally:
        for each in STOP_SIGNALS:
            loop.remove_signal_handler(each)
