"""The value of the store: chat, RAG, a batch and mixed prompts, with it and without.

One engine runs in four ways: without the store, with it, as two workers on one store, and as the
ideal, which has the prefix at hand and calls nothing. Each request is made in all ways, one after
the other, in a random order. docs/workloads.md says how to read the result.
"""

import json
import signal
import sys
from functools import cache
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from kvstore.logs import configure_logging
from support.table_console import table_console
from support.workloads.page import write_section
from support.workloads.plan import FULL, QUICK, SMALLEST
from support.workloads.plots import draw
from support.workloads.tables import tables

KINDS = ("chat", "rag", "batch", "mixed", "miss")


def main(  # noqa: PLR0913 - each is an option
    *,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON value on one line.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option(help="Write all figures and samples to this file.")
    ] = None,
    page: Annotated[Path | None, typer.Option(help="Write the tables into this page.")] = None,
    plots: Annotated[Path | None, typer.Option(help="Draw plots into this folder.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Show this file of --output without a measurement.")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Take a minute, with a tiny model and rougher figures.")
    ] = False,
    smallest: Annotated[
        bool, typer.Option(help="Only try the code. The figures mean nothing.")
    ] = False,
    model: Annotated[
        str, typer.Option(help="A model, as for kvstore-worker; gemma, or tiny with --quick.")
    ] = "",
    workload: Annotated[str, typer.Option(help="Workloads to measure, with commas.")] = ",".join(
        KINDS
    ),
    workers: Annotated[str, typer.Option(help="1, or 1,2 to add two worker processes.")] = "1,2",
    threads: Annotated[
        int, typer.Option(min=0, help="0: one for each core, or one with tiny.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Seed of the requests and of their order.")] = 1,
) -> None:
    """Measures the workloads, or shows earlier results."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if report:
        document = json.loads(report.read_text(encoding="utf-8"))
    else:
        wanted = [each.strip() for each in workload.split(",")]
        if unknown := set(wanted) - set(KINDS):
            raise typer.BadParameter(f"{sorted(unknown)}, not among {KINDS}")
        # Imported here, because it loads torch, which a report does not need.
        from transformers.utils.logging import disable_progress_bar  # noqa: PLC0415

        from support.workloads.document import measure  # noqa: PLC0415

        disable_progress_bar()
        configure_logging("console", "warning")
        document = measure(
            SMALLEST if smallest else QUICK if quick else FULL,
            model=model or ("tiny" if quick or smallest else "gemma"),
            wanted=wanted,
            two_workers="2" in workers.split(","),
            threads=threads,
            seed=seed,
            say=_say,
        )
    if output:
        output.write_text(json.dumps(document) + "\n", encoding="utf-8")
    if plots:
        draw(document, plots)
    if page:
        write_section(page, document, output or report)
    if as_json:
        sys.stdout.write(json.dumps(document["summary"]) + "\n")
        return
    console = table_console()
    for each in tables(document):
        console.print(each)


@cache
def _console() -> Console:
    return Console(stderr=True)


def _say(what: str) -> None:
    _console().print(what, style="dim")


if __name__ == "__main__":
    typer.run(main)
