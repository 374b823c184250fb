"""The latency of calls while the store works in the background, and while it does not.

Callers on lanes make calls on a fixed schedule. A call's latency counts from its time in the
schedule. One store has tier 1 alone and nothing else to do. The other has all tiers, metrics and
work beside the calls. They take turns. With ``--floor`` the first store is also measured while
the second one works for nobody: no store on this machine can do better beside such work.
"""

import json
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from statistics import median
from time import sleep
from typing import Annotated, Any, NamedTuple

import typer
from rich.table import Table

from kvstore_client.testing import RunningStore, running_store
from support import machine
from support.rpc.cycle import prompt_of
from support.rpc.worker import Worker, attached_worker
from support.table_console import table_console
from support.tails.background import CALLS, KINDS, Background, background_of, insert
from support.tails.figures import QUANTILES, figures_of, ratios
from support.tails.fleet import CALLERS, Fleet, fleet_of, joined
from support.tails.namespaces import PAGE_BYTES, fresh_prompts, key_of
from support.tails.open_loop import NEW_PAGES, TOKENS, Latencies

TIERS = "tiers"
ALONE, BUSY, FLOOR = "alone", "busy", "floor"
# Pages of tier 1; tier 2 has twice as many, and tier 3 four times as many.
SLOTS = 1 << 15
MEMORY = SLOTS * PAGE_BYTES
# The prompts that fill tier 1 before the first slice.
FILL_PAGES = 256
CALLER_COUNT, CALLS_PER_SECOND = 8, 1_000.0
# Rounds, and seconds a slice: about four minutes, or half a minute.
FULL, QUICK = (8, 12.0), (2, 3.0)
# Seconds between two slices.
PAUSE = 0.5


class Plan(NamedTuple):
    """The stores to measure, the work beside the calls, and the times."""

    trees: Mapping[str, Path | None]
    work: Sequence[str]
    rounds: int
    seconds: float
    calls_per_second: float
    has_floor: bool = False

    @property
    def ways(self) -> tuple[str, ...]:
        """The ways of each checkout."""
        return (ALONE, BUSY, FLOOR) if self.has_floor else (ALONE, BUSY)


class Way(NamedTuple):
    """A store, a worker of it, and the work beside its callers, in that store or in another."""

    name: str
    store: RunningStore
    worker: Worker
    beside: Sequence[Background] = ()


def measure(plan: Plan) -> dict[str, Latencies]:
    """Returns the latencies of each way, by its name, over all rounds."""
    slices: dict[str, list[Latencies]] = {}
    with ExitStack() as stack:
        ways = [way for name, tree in plan.trees.items() for way in _ways(name, tree, plan, stack)]
        folders = {each.name: each.store.runtime_dir for each in ways}
        fleet = stack.enter_context(fleet_of(CALLER_COUNT, folders))
        for each in ways:
            _fill(each)
            # Threads, lanes and caches exist before the measurement begins.
            _slice(each, fleet, plan, min(plan.seconds, 1.0))
        for number in range(plan.rounds):
            for each in ways[:: -1 if number % 2 else 1]:
                slices.setdefault(each.name, []).append(_slice(each, fleet, plan, plan.seconds))
    return {name: joined(of) for name, of in slices.items()}


def _ways(name: str, tree: Path | None, plan: Plan, stack: ExitStack) -> list[Way]:
    """Starts the two stores of one checkout, and the processes with the work of one."""
    program = ("-m", "kvstore")
    if tree is not None:
        paths = [str(tree), str(tree / "clients/python")]
        main = "from kvstore.__main__ import main; sys.exit(main())"
        program = ("-c", f"import sys; sys.path[:0] = {paths!r}; {main}")
    size = ("--tier1-bytes", str(MEMORY), "--extent-bytes", str(MEMORY // 4))
    alone = stack.enter_context(running_store(*size, program=program))
    more: tuple[str, ...] = ("--metrics-listen", "127.0.0.1:0")
    if TIERS in plan.work:
        path = alone.runtime_dir.parent / "slab"
        more += ("--tier2-bytes", str(2 * MEMORY), "--tier3-write", "through")
        more += ("--tier3-path", str(path), "--tier3-bytes", str(4 * MEMORY))
    busy = stack.enter_context(running_store(*size, *more, program=program))
    port = int(busy.log.partition("http_listening")[2].partition("port=")[2].split()[0])
    kinds = tuple(each for each in KINDS if each in plan.work)
    background = stack.enter_context(background_of(busy.runtime_dir, port, kinds))
    beside: dict[str, tuple[RunningStore, tuple[Background, ...]]] = {
        ALONE: (alone, ()),
        BUSY: (busy, (background,)),
    }
    if plan.has_floor:
        # Without calls the store would not work in small parts.
        calls = stack.enter_context(background_of(busy.runtime_dir, port, (CALLS,)))
        beside[FLOOR] = alone, (background, calls)
    ways = []
    for way, (store, work) in beside.items():
        key = key_of(CALLERS)
        worker = stack.enter_context(attached_worker(store.runtime_dir, key=key))
        ways.append(Way(f"{name} {way}", store, worker, work))
    return ways


def _fill(way: Way) -> None:
    """Fills tier 1."""
    for prompt in islice(fresh_prompts(99, FILL_PAGES), SLOTS // FILL_PAGES):
        insert(way.worker, prompt)


def _slice(way: Way, fleet: Fleet, plan: Plan, seconds: float) -> Latencies:
    for each in way.beside:
        each.prepare(seconds)
    # What was inserted since may have taken its place.
    insert(way.worker, prompt_of(TOKENS))
    sleep(PAUSE)
    for each in way.beside:
        each.begin(seconds)
    before = machine.cpu_seconds(way.store.pid)
    latencies = fleet.measure(way.name, seconds, plan.calls_per_second)
    spent = machine.cpu_seconds(way.store.pid) - before
    for each in way.beside:
        each.wait()
    return latencies._replace(cores=(spent / seconds,))


def document_of(
    plan: Plan, measured: Mapping[str, Latencies], loads: tuple[float, float]
) -> dict[str, Any]:
    """Returns everything as one JSON value."""
    figures = {name: figures_of(each) for name, each in measured.items()}
    return {
        "benchmark": "tails",
        "machine": machine.machine_facts(),
        "load_average": {"before": loads[0], "after": loads[1]},
        "method": {
            "callers": CALLER_COUNT,
            "calls_per_second": plan.calls_per_second,
            "rounds": plan.rounds,
            "slice_seconds": plan.seconds,
            "match_tokens": TOKENS,
            "inserted_pages": NEW_PAGES,
            "work": list(plan.work),
            "latency": "from the call's time in the schedule; of all calls of all rounds",
        },
        "trees": {
            name: {
                **{way: figures[f"{name} {way}"] for way in plan.ways},
                "ratios": {
                    way: ratios(figures[f"{name} {way}"], figures[f"{name} {ALONE}"])
                    for way in plan.ways[1:]
                },
                "cores": {
                    way: round(median(measured[f"{name} {way}"].cores), 2) for way in plan.ways
                },
                "refused": measured[f"{name} {BUSY}"].refused,
            }
            for name in plan.trees
        },
    }


def table_of(document: Mapping[str, Any]) -> Table:
    """Returns the figures for people."""
    table = Table("checkout", "call", "way", *QUANTILES, "max", title="microseconds")
    for name, tree in document["trees"].items():
        for call in tree[ALONE]:
            for way in tree["cores"]:
                cells = [f"{tree[way][call][f'{key}_us']:,.0f}" for key in (*QUANTILES, "max")]
                table.add_row(name, call, way, *cells)
            for way, shares in tree["ratios"].items():
                cells = [str(shares[call][key]) for key in QUANTILES]
                table.add_row(name, call, f"{way} / {ALONE}", *cells, "")
    for name, tree in document["trees"].items():
        for way, cores in tree["cores"].items():
            table.add_row(name, "cores", way, str(cores))
    return table


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    beside: Annotated[
        Path | None, typer.Option(help="Also measure the store of this other checkout, in turns.")
    ] = None,
    work: Annotated[
        list[str] | None,
        typer.Option(help=f"Work beside the calls: {', '.join((TIERS, *KINDS))}. Without: all."),
    ] = None,
    calls: Annotated[
        float, typer.Option(min=1.0, help="Calls a second, of all callers.")
    ] = CALLS_PER_SECOND,
    rounds: Annotated[int, typer.Option(help="Rounds of each measurement.")] = 0,
    seconds: Annotated[float, typer.Option(help="Seconds of each slice.")] = 0.0,
    floor: Annotated[
        bool, typer.Option(help="Also measure the first store beside the second one's work.")
    ] = False,
) -> None:
    """Measures the latency of calls beside work in the background, and without."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    unknown = set(work or ()) - {TIERS, *KINDS}
    if unknown:
        raise typer.BadParameter(f"no such work: {', '.join(sorted(unknown))}")
    usual = QUICK if quick else FULL
    trees: dict[str, Path | None] = {"here": None}
    if beside is not None:
        trees["beside"] = beside.resolve()
    times = rounds or usual[0], seconds or usual[1]
    plan = Plan(trees, work or (TIERS, *KINDS), *times, calls, has_floor=floor)
    before = machine.load_average()
    measured = measure(plan)
    document = document_of(plan, measured, (before, machine.load_average()))
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    table_console().print(table_of(document))


if __name__ == "__main__":
    typer.run(main)
