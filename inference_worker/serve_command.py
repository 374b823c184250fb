"""``kvstore-worker serve``."""

import asyncio
import logging
import signal
import socket
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console

from inference_worker.command_line import (
    Backend,
    Deterministic,
    Device,
    Dtype,
    Longest,
    Model,
    StoreDir,
    Threads,
    told_failures,
)
from inference_worker.device_name import CPU
from inference_worker.engine_settings import EngineSettings
from inference_worker.fleet import Fleet
from inference_worker.http.api_keys import read_api_keys
from inference_worker.http.app import build_app
from inference_worker.http.served_model import served_model
from inference_worker.http.server import GRACE_SECONDS, listening_socket, serve_app
from inference_worker.http.settings import HttpSettings
from inference_worker.log_lines import log_to_stderr
from inference_worker.model_names import GEMMA
from inference_worker.prefix_cache_backend import check_backend
from inference_worker.scheduler import MAX_RUNNING
from inference_worker.serve_store import ServeStore, StoreOptions
from inference_worker.tokenizer import load_tokenizer

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
# As a shell shows an end by a signal.
SIGNAL_STATUS = 128
T = TypeVar("T")
log = logging.getLogger(__name__)


def serve(  # noqa: PLR0913 - each is an option
    *,
    model: Model = GEMMA,
    workers: Annotated[int, typer.Option(help="Engine processes.", min=1, max=64)] = 1,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0: any.", min=0, max=65535)] = 8000,
    runtime_dir: StoreDir = None,
    start_store: Annotated[
        bool,
        typer.Option(
            "--start-store", metavar="", help="Run a kvstore-server until the end, of its own."
        ),
    ] = False,
    prefix_cache_backend: Backend = None,
    prefix_cache_max_pages: Annotated[
        int | None,
        typer.Option(
            help="Most pages that a store of --start-store keeps in its first tier; 0: the store "
            "is not used. Refused with another's store, which has a budget of its own.",
            min=0,
        ),
    ] = None,
    page_tokens: Annotated[
        int | None, typer.Option(help="Tokens in a page; default: 16.", min=1)
    ] = None,
    longest: Longest = None,
    max_step_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens of prompts that an engine computes in a step; default: 512 on a CPU, "
            "4096 on a GPU.",
            min=1,
        ),
    ] = None,
    max_running: Annotated[
        int, typer.Option(help="Requests of an engine that have pages at a time.", min=1)
    ] = MAX_RUNNING,
    max_waiting: Annotated[
        int | None,
        typer.Option(help="Requests of an engine that may wait for a place; default: 256.", min=1),
    ] = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    deterministic: Deterministic = False,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="A file of lines 'name key', mode 0600; default: all are let in."),
    ] = None,
    grace: Annotated[
        float, typer.Option(help="Seconds that running requests get after SIGTERM.", min=0)
    ] = GRACE_SECONDS,
) -> None:
    """Answer OpenAI's requests over HTTP, with several engines on one store.

    Each engine is a process with a lease of its own; what one computes the others find. Where
    one dies, its requests go on on another and it is started again. SIGTERM lets running
    requests end. Without a store it goes on without, and attaches when there is one.
    """
    log_to_stderr(logging.INFO)
    with told_failures(Console(stderr=True)):
        store = StoreOptions(
            runtime_dir=runtime_dir,
            backend=prefix_cache_backend,
            start=start_store,
            max_pages=prefix_cache_max_pages,
        )
        if store.used and not store.start:
            check_backend(runtime_dir, prefix_cache_backend)
        engines = [
            EngineSettings(
                model=model,
                name=f"engine-{number}",
                threads=threads,
                processes=workers,
                page_tokens=page_tokens,
                longest=longest,
                device=device,
                dtype=dtype,
                deterministic=deterministic,
                max_step_tokens=max_step_tokens,
                max_running=max_running,
                max_waiting=max_waiting,
                awaits_store=store.asked,
            )
            for number in range(workers)
        ]
        http = HttpSettings(api_keys=None if api_keys is None else read_api_keys(api_keys))
        with listening_socket(host, port) as listening:
            asyncio.run(_serve(engines, store, http, listening, grace))


async def _serve(
    engines: list[EngineSettings],
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
            log.info("to look at its store: KVSTORE_RUNTIME_DIR=%s kvstore-ctl top", store.path)
        name = engines[0].model
        model = served_model(name, tokenizer, frozenset(loaded.end_ids), loaded.longest)
        where = listening.getsockname()
        shown = f"[{where[0]}]" if ":" in where[0] else where[0]
        log.info("serving %s at http://%s:%d", name, shown, where[1])
        await serve_app(build_app(fleet, model, http), listening, grace=grace)


async def unless_signalled(starting: Coroutine[Any, Any, T]) -> T:
    """Await a start that a signal to stop ends, with the status that a shell shows for it."""
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
