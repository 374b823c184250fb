"""``kvstore-worker``: the reference engine as a program."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

import kvstore_client
from inference_worker.demo import run_demo, verdict
from inference_worker.device_work import DeviceWork
from inference_worker.engine import PAGE_TOKENS, Engine
from inference_worker.errors import WorkerError
from inference_worker.line_worker import LineWorker
from inference_worker.model import load_model
from inference_worker.model_source import GEMMA
from inference_worker.store_namespace import model_namespace
from inference_worker.threads import use_threads

# How long `run` waits for a store before it goes on without: it attaches whenever there is one.
ATTACH_SECONDS = 10.0
# Of the demo's table where no terminal says how wide it is.
TABLE_WIDTH = 120

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Model = Annotated[
    str, typer.Option(help="gemma, tiny, tiny-llama, tiny-gemma3, or a transformers model folder")
]
Threads = Annotated[
    int | None, typer.Option(help="Threads of each process; default: one for each core.")
]


@app.command()
def demo(
    *,
    model: Model = GEMMA,
    json_report: Annotated[
        bool, typer.Option("--json", help="Print one JSON object last, on standard output.")
    ] = False,
    leak: Annotated[
        bool, typer.Option("--leak", help="Worker A keeps one pin, to be reported as a leak.")
    ] = False,
    threads: Threads = None,
) -> None:
    """Run a store and two workers, and compare them with stock transformers.

    Exits 0 if all tokens are the same, each worker used the other's pages and nothing but what
    --leak asked for was left over; else 1.
    """
    console = Console(stderr=json_report)
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    try:
        report = run_demo(model, console, leak=leak, threads=threads)
    except (WorkerError, kvstore_client.errors.StoreError, FileNotFoundError) as error:
        console.print(str(error), markup=False)
        raise typer.Exit(1) from None
    if json_report:
        sys.stdout.write(json.dumps(report) + "\n")
    wrong = verdict(report, leak=leak)
    for line in wrong:
        console.print(line, style="red", markup=False)
    raise typer.Exit(1 if wrong else 0)


@app.command()
def run(
    model: Model = GEMMA,
    runtime_dir: Annotated[
        Path | None, typer.Option(help="The store's folder; default: as kvstore-server's.")
    ] = None,
    name: Annotated[str, typer.Option(help="A name for people: lists of leases, logs.")] = "worker",
    page_tokens: Annotated[int, typer.Option(help="Tokens in a page.")] = PAGE_TOKENS,
    longest: Annotated[
        int | None, typer.Option(help="Longest sequence in tokens; default: the model's.")
    ] = None,
    threads: Threads = None,
) -> None:
    """Answer requests, lines of JSON on standard input, on the pages of a store.

    The lines are described in inference_worker/line_worker.py. Without a store it
    answers the same, and attaches when there is one.
    """
    use_threads(threads)
    disable_progress_bar()
    loaded = load_model(model)
    work = DeviceWork(loaded.device)
    config = kvstore_client.ClientConfig(display_name=name, wait_for_device=work.wait)
    with kvstore_client.Client(runtime_dir, config) as client:
        namespace = model_namespace(client, loaded, page_tokens, model)
        namespace.wait_open(ATTACH_SECONDS)
        engine = Engine(loaded, namespace, page_tokens=page_tokens, longest=longest)
        LineWorker(engine, client, namespace).serve(sys.stdin, sys.stdout)


def main() -> None:
    """Run the program."""
    app()


if __name__ == "__main__":
    main()
