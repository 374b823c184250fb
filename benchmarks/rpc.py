"""The cost of a call over gRPC with threads, over grpc.aio, and without gRPC.

Two servers run side by side and are measured in turns, a slice of time each, so that both see the
same machine.
"""

import json
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from kvstore_client.testing import running_store
from support import machine
from support.fetch.run import run
from support.fetch.tables import part_table
from support.rpc.figures import Cell, Rounds, cell_figures, ratios
from support.rpc.groups import group_figures
from support.rpc.local import local_worker
from support.rpc.slices import LocalStore, ServedStore
from support.rpc.steps import step_figures
from support.rpc.summary import summary
from support.rpc.tables import tables
from support.rpc.worker import PAGE_BYTES, PAGE_TOKENS, attached_worker
from support.table_console import table_console

THREADS, AIO, LANE = "grpc.server", "grpc.aio", "hot lane"
STORE, IN_PROCESS = "store alone", "in process"
FOLDER = str(Path(__file__).parent)
AIO_MAIN = "from support.rpc.aio_server import main; sys.exit(main())"
PROGRAMS = {
    THREADS: ("-m", "kvstore"),
    AIO: ("-c", f"import sys; sys.path.insert(0, {FOLDER!r}); {AIO_MAIN}"),
}
TOKENS = (2_048, 100_000)
# Rounds, and seconds a slice: about four minutes, or half a minute.
FULL, QUICK = (7, 1.5), (3, 0.4)
# Seconds for each kind of cycle, before the first round.
WARM_UP = 0.2


class Plan:
    """The prompts, callers and times to measure."""

    def __init__(self, tokens: list[int], callers: list[int], rounds: int, seconds: float) -> None:
        self.tokens = (0, *tokens)
        self.callers = tuple(callers)
        self.rounds = rounds
        self.seconds = seconds
        pages = sum(tokens) // PAGE_TOKENS * (1 + max(callers))
        # Twice what is needed, so that no arena grows while it is measured.
        self.tier_bytes = 2 * PAGE_BYTES * max(pages, 1024)


def measure(plan: Plan) -> Rounds:
    """Returns the slices of every cell, one a round."""
    rounds: Rounds = {}
    with ExitStack() as stack:
        served = _serve(plan, stack)
        local = LocalStore(*stack.enter_context(local_worker(plan.tier_bytes)))
        local.publish(plan.tokens[1:])
        for store in served.values():
            for tokens in plan.tokens:
                # Threads, connections and caches exist before the measurement begins.
                store.measure(tokens, max(plan.callers), min(plan.seconds, WARM_UP))
        console = Console(stderr=True)
        numbers = track(
            range(plan.rounds), "Measuring", console=console, disable=not console.is_terminal
        )
        for number in numbers:
            order = list(served.items())[:: -1 if number % 2 else 1]
            for tokens in plan.tokens:
                for callers in plan.callers:
                    for name, store in order:
                        slice_ = store.measure(tokens, callers, plan.seconds)
                        rounds.setdefault(Cell(name, tokens, callers), []).append(slice_)
                for name, slice_ in zip(
                    (IN_PROCESS, STORE), local.measure(tokens, plan.seconds), strict=True
                ):
                    rounds.setdefault(Cell(name, tokens, 1), []).append(slice_)
    return rounds


def _serve(plan: Plan, stack: ExitStack) -> dict[str, ServedStore]:
    """Starts the servers with the shared prompts cached, and workers for each way to call them."""
    size, most = str(plan.tier_bytes), max(plan.callers)
    arguments = ("--tier1-bytes", size, "--extent-bytes", size)
    stores = {
        name: stack.enter_context(running_store(*arguments, program=program))
        for name, program in PROGRAMS.items()
    }
    served = {}
    for name, store in {**stores, LANE: stores[THREADS]}.items():
        workers = [
            stack.enter_context(attached_worker(store.runtime_dir, hot_lane=name == LANE))
            for _ in range(most)
        ]
        served[name] = ServedStore(store.pid, workers)
        stack.callback(served[name].stop)
        if name != LANE:
            served[name].publish(plan.tokens[1:])
    return served


def document_of(plan: Plan, rounds: Rounds, loads: tuple[float, float]) -> dict[str, Any]:
    """Returns everything as one JSON value."""
    return {
        "benchmark": "rpc",
        "machine": machine.machine_facts(),
        "load_average": {"before": loads[0], "after": loads[1]},
        "method": {
            "rounds": plan.rounds,
            "slice_seconds": plan.seconds,
            "page_tokens": PAGE_TOKENS,
            "health": "grpc.health.v1.Health/Check, which passes none of our code",
            "empty": "ReleasePins without ids",
            "hit": "AcquirePrefix of a prompt that is cached whole, then ReleasePins",
            "hot lane": "the store of grpc.server, called over lanes; health goes over gRPC",
            "figure": "the median over the rounds of each round's own",
        },
        "servers": [THREADS, AIO, LANE],
        "cells": [cell_figures(cell, slices) for cell, slices in rounds.items()],
        "ratios": [
            ratios(Cell(AIO, tokens, callers), Cell(THREADS, tokens, callers), rounds)
            for tokens in plan.tokens
            for callers in plan.callers
        ],
        "lane_ratios": [
            ratios(Cell(LANE, tokens, callers), Cell(THREADS, tokens, callers), rounds)
            for tokens in plan.tokens
            for callers in plan.callers
        ],
    }


def show(name: str, rounds: int, seconds: float, figures: Callable[[], dict[str, Any]]) -> None:
    """Prints the figures of one part alone, as one JSON value."""
    before = machine.load_average()
    document = {
        "benchmark": f"rpc {name}",
        "machine": machine.machine_facts(),
        "method": {"rounds": rounds, "slice_seconds": seconds},
        **figures(),
        "load_average": {"before": before, "after": machine.load_average()},
    }
    sys.stdout.write(json.dumps(document, indent=2) + "\n")


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    tokens: Annotated[list[int], typer.Option(min=2 * PAGE_TOKENS)] = list(TOKENS),  # noqa: B006
    callers: Annotated[list[int], typer.Option(min=1)] = [1, 4],  # noqa: B006
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 0,
    seconds: Annotated[float, typer.Option(help="Seconds of each slice.")] = 0.0,
    peers: Annotated[
        bool, typer.Option(help="Also measure whole hits, and LMCache if it is set up.")
    ] = True,
    groups: Annotated[
        int, typer.Option(help="Only match this many tokens in KV cache groups, over a lane.")
    ] = 0,
    steps: Annotated[
        int, typer.Option(help="Only make steps of this many sequences, by one call and by many.")
    ] = 0,
) -> None:
    """Measures the cost of a call over gRPC with threads, over grpc.aio, and without gRPC."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    usual = QUICK if quick else FULL
    times = rounds or usual[0], seconds or usual[1]
    if groups:
        show("--groups", *times, lambda: group_figures(groups, *times))
        return
    if steps:
        show("--steps", *times, lambda: step_figures(steps, tokens[0], *times))
        return
    plan = Plan(tokens, callers, *times)
    before = machine.load_average()
    measured = measure(plan)
    document = document_of(plan, measured, (before, machine.load_average()))
    if peers:
        document["hits"] = run(quick=quick, rounds=rounds, parts=("hit",))
        document |= summary(document["hits"])
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
        return
    console = table_console()
    facts = ", ".join(f"{key} {value}" for key, value in document["machine"].items())
    console.print(f"{facts}, load average {before}", style="dim")
    for table in tables(document):
        console.print(table)
    if peers:
        console.print(part_table(document["hits"], "hit"))
        for name, ratio in summary(document["hits"]).items():
            console.print(f"{name}: {ratio}")


if __name__ == "__main__":
    typer.run(main)
