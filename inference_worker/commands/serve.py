"""``kvstore-worker serve``: its options."""

import logging
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from inference_worker.commands.options import (
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
from inference_worker.engine.scheduler import MAX_RUNNING
from inference_worker.fleet.log import log_to_stderr
from inference_worker.fleet.protocol import EngineSettings
from inference_worker.http.api_keys import read_api_keys
from inference_worker.http.settings import GRACE_SECONDS, HttpSettings
from inference_worker.model.names import CPU, GEMMA
from inference_worker.store.backend import check_backend
from inference_worker.store.own_store import StoreOptions


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
            "--start-store", metavar="", help="Run a kvstore-server of its own until the end."
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
        int,
        typer.Option(help="Most running requests of an engine, which have pages.", min=1),
    ] = MAX_RUNNING,
    max_waiting: Annotated[
        int | None,
        typer.Option(help="Most waiting requests of an engine; default: 256.", min=1),
    ] = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    deterministic: Deterministic = False,
    api_keys: Annotated[
        Path | None,
        typer.Option(help="A file of lines 'name key', mode 0600; default: access for all."),
    ] = None,
    strict_parameters: Annotated[
        bool,
        typer.Option(
            "--strict-parameters",
            metavar="",
            help="Refuse requests with parameters that the server does not know; default: ignore "
            "them and name them in the answer's header.",
        ),
    ] = False,
    grace: Annotated[
        float, typer.Option(help="Seconds that running requests get after SIGTERM.", min=0)
    ] = GRACE_SECONDS,
) -> None:
    """Serves OpenAI's API over HTTP, with several engines on one store.

    Each engine is a process with its own lease; all find what one has computed. If one dies,
    its requests continue on another and it is started again. SIGTERM lets running requests
    end. Without a store the engines work too, and attach once a store starts.
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
        http = HttpSettings(
            api_keys=None if api_keys is None else read_api_keys(api_keys),
            strict_parameters=strict_parameters,
        )
        # Imports starlette and uvicorn, which no other command of the program needs.
        from inference_worker.fleet.server import serve_engines  # noqa: PLC0415

        serve_engines(engines, store, http, host=host, port=port, grace=grace)


# The program of ``serve`` alone: the other commands load torch, which it does not need.
app = typer.Typer(name="kvstore-worker", add_completion=False)
app.command()(serve)


@app.callback()
def program() -> None:
    """Keeps the command's name: without a callback typer drops the name of a single command."""
