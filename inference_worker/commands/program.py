"""The reference engine as a program."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from inference_worker.commands.chat import chat
from inference_worker.commands.experiments import app as experiments
from inference_worker.commands.generate import generate
from inference_worker.commands.options import (
    Deterministic,
    Device,
    Dtype,
    Json,
    Longest,
    Model,
    PageTokens,
    StoreDir,
    Threads,
    end_on_sigterm,
    told_failures,
)
from inference_worker.commands.serve import serve
from inference_worker.commands.warm import warm
from inference_worker.demo.demo import run_demo, verdict
from inference_worker.demo.hosts import EngineOptions, hosts_verdict, run_hosts_demo
from inference_worker.demo.line_worker import LineWorker
from inference_worker.engine.engine import PAGE_TOKENS
from inference_worker.engine.local_worker import ATTACH_SECONDS, local_worker
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.names import CPU, GEMMA
from kvstore import __version__

# The width of the demo's table without a terminal.
TABLE_WIDTH = 120

app = typer.Typer(name="kvstore-worker", add_completion=False, no_args_is_help=True)
app.command()(chat)
app.command()(generate)
app.command()(serve)
app.command()(warm)
app.add_typer(experiments, name="experiment")


def _show_version(wanted: bool) -> None:  # noqa: FBT001 - as typer calls it
    if wanted:
        sys.stdout.write(f"kvstore-worker {__version__}\n")
        raise typer.Exit


@app.callback(help=__doc__)
def program(
    *,
    show_version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            help="Print the version and end.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Keeps ``--version`` before the commands."""
    del show_version


@app.command()
def demo(
    *,
    model: Model = GEMMA,
    json_report: Json = False,
    leak: Annotated[
        bool,
        typer.Option(
            "--leak", metavar="", help="Worker A leaks one pin, which the demo has to report."
        ),
    ] = False,
    threads: Threads = None,
    device: Device = CPU,
    hosts: Annotated[
        int,
        typer.Option(
            min=1,
            max=2,
            help="2: two stores, which share nothing but an engine, with a worker each.",
        ),
    ] = 1,
    remote_url: Annotated[
        str | None,
        typer.Option(
            help="With --hosts 2: an engine that runs. Default: a Valkey of the demo's own, which "
            "is killed at the end."
        ),
    ] = None,
    remote_credential_file: Annotated[
        Path | None, typer.Option(help="With --remote-url: its user and password.")
    ] = None,
) -> None:
    """Runs a store and two workers, and compares them with stock transformers.

    Exits 0 if all tokens are the same, each worker used the other's pages, and no holds are left
    but the leak of --leak; else 1. --json prints one object last. With --device cuda:N the
    store's pages are on the device too. Then all compute in float32, so that tokens are equal.
    """
    end_on_sigterm()
    console = Console(stderr=json_report)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    if hosts == 1 and (remote_url or remote_credential_file):
        raise typer.BadParameter("needs --hosts 2", param_hint="--remote-url")
    if hosts > 1 and (leak or device != CPU):
        raise typer.BadParameter(
            "two hosts have no leak and no device: leave --leak and --device out",
            param_hint="--hosts",
        )
    with told_failures(console):
        if hosts > 1:
            engine = EngineOptions(remote_url, remote_credential_file)
            report = run_hosts_demo(model, console, engine, threads=threads)
            wrong = hosts_verdict(report)
        else:
            report = run_demo(model, console, leak=leak, threads=threads, device=device)
            wrong = verdict(report, leak=leak)
    if json_report:
        sys.stdout.write(json.dumps(report) + "\n")
    for line in wrong:
        console.print(line, style="red", markup=False)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def run(
    model: Model = GEMMA,
    runtime_dir: StoreDir = None,
    name: Annotated[str, typer.Option(help="The name in lists of leases and in logs.")] = "worker",
    page_tokens: PageTokens = PAGE_TOKENS,
    longest: Longest = None,
    threads: Threads = None,
    device: Device = CPU,
    dtype: Dtype = None,
    *,
    deterministic: Deterministic = False,
) -> None:
    """Answers requests from standard input, one line of JSON each, on the pages of a store.

    The lines are described in inference_worker/demo/line_worker.py. Without a store it
    gives the same answers, and attaches once a store starts.
    """
    use_threads(threads_for(model, threads))
    disable_progress_bar()
    with (
        told_failures(Console(stderr=True)),
        local_worker(
            model,
            runtime_dir=runtime_dir,
            name=name,
            page_tokens=page_tokens,
            longest=longest,
            attach_seconds=ATTACH_SECONDS,
            device=device,
            dtype=dtype,
            deterministic=deterministic,
        ) as worker,
    ):
        LineWorker(worker.engine, worker.client, worker.namespace).serve(sys.stdin, sys.stdout)
