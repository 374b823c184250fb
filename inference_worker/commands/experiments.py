"""Measures what the cache saves, on a store of the experiment's own."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from inference_worker.commands.options import Json, Model, Threads, end_on_sigterm, told_failures
from inference_worker.demo.experiments import (
    CHAT_LONGEST,
    PAGE_TOKENS,
    PREFILL_LONGEST,
    RUNS,
    chat_turns_faults,
    measure_chat_turns,
    measure_saved_prefill,
    saved_prefill_faults,
)
from inference_worker.engine.local_worker import LocalWorker, local_worker
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.names import GEMMA
from kvstore_client.testing import running_store

# One extent, so that no run waits for memory.
STORE_BYTES = "512MiB"
# The width of a table without a terminal.
TABLE_WIDTH = 120

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)


@app.command()
def saved_prefill(*, model: Model = GEMMA, threads: Threads = None, as_json: Json = False) -> None:
    """Counts the positions that the model runs for a prompt that is mostly cached.

    Exits 1 if they are more than the prompt's own and the decoding's, or the outputs differ.
    """
    with _worker(model, threads, PREFILL_LONGEST) as worker:
        report = measure_saved_prefill(worker)
    _show(report, _prefill_table, saved_prefill_faults(report), as_json=as_json)


@app.command()
def chat_turns(
    *,
    model: Model = GEMMA,
    runs: Annotated[int, typer.Option(help="Chats of each kind.", min=1)] = RUNS,
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Times the first token of two turns of a chat, with the cache and without it.

    Exits 1 if the second turn does not reuse the first, or the outputs differ.
    """
    with _worker(model, threads, CHAT_LONGEST) as worker:
        report = measure_chat_turns(worker, runs)
    _show(report, _turns_table, chat_turns_faults(report), as_json=as_json)


@contextmanager
def _worker(model: str, threads: int | None, longest: int) -> Iterator[LocalWorker]:
    """Runs a store and a worker on it."""
    end_on_sigterm()
    use_threads(threads_for(model, threads))
    with (
        told_failures(Console(stderr=True)),
        running_store("--tier1-bytes", STORE_BYTES, "--extent-bytes", STORE_BYTES) as store,
        local_worker(
            model,
            runtime_dir=store.runtime_dir,
            name="experiment",
            page_tokens=PAGE_TOKENS,
            longest=longest,
        ) as worker,
    ):
        yield worker


def _show(
    report: dict[str, Any],
    table: Callable[[dict[str, Any]], Table],
    wrong: list[str],
    *,
    as_json: bool,
) -> None:
    """Prints a report and its faults; exits with status 1 if there are faults."""
    if as_json:
        sys.stdout.write(json.dumps(report) + "\n")
    else:
        console = Console()
        if not console.is_terminal:
            console.width = TABLE_WIDTH
        console.print(table(report))
    for line in wrong:
        Console(stderr=True).print(line, style="red", markup=False)
    raise typer.Exit(1 if wrong else 0)


def _prefill_table(report: dict[str, Any]) -> Table:
    same = "identical" if report["identical"] else "NOT identical"
    title = (
        f"{report['shared_tokens']} shared tokens + {report['own_tokens']} own, "
        f"{report['decode_steps']} decode steps, pages of {report['page_tokens']}: outputs {same}"
    )
    table = Table("cache", title=title, box=SIMPLE_HEAD)
    for name in ("matched", "copied", "prefilled", "positions run", "published elsewhere"):
        table.add_column(name, justify="right")
    for kind in ("without", "with"):
        row = report[kind]
        names = ("matched_tokens", "copied_tokens", "prefilled_tokens", "computed_tokens")
        cells = [str(row[name]) for name in names]
        table.add_row(kind, *cells, str(report["published"][kind]))
    return table


def _turns_table(report: dict[str, Any]) -> Table:
    same = "identical" if report["identical"] else "NOT identical"
    title = f"First token of each turn, median of {report['runs']} chats: outputs {same}"
    table = Table("turn", title=title, box=SIMPLE_HEAD)
    names = ("prompt", "hit", "copy", "run", "ms without", "ms with", "ms published")
    for name in names:
        table.add_column(name, justify="right")
    for number, row in enumerate(report["turns"]):
        tokens = ("prompt_tokens", "matched_tokens", "copied_tokens", "prefilled_tokens")
        cells = [str(row[name]) for name in tokens]
        times = (row["ttft_ms_without"], row["ttft_ms_with"], report["published_ms"][number])
        table.add_row(str(number + 1), *cells, *(f"{each:.0f}" for each in times))
    return table
