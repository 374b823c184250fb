"""The cost of a store that stops answering: SIGSTOP of the server for a while, under load."""

import json
import signal
import sys
from statistics import median
from threading import Event
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from kvstore_client import ClientConfig, connect_admin
from kvstore_client.testing import RunningStore, running_store, wait_until
from support import machine
from support.stall.figures import Request, Stall, cost_of, health_of_stall, hits_after
from support.stall.fleet import ENGINE, LIGHT, Fleet
from support.stall.load import now
from support.stall.probe import DEADLINE, Look, Prober
from support.table_console import table_console

SIZE = ("--tier1-bytes", "256MiB", "--extent-bytes", "64MiB")
SECONDS, QUICK_SECONDS = 30.0, 4.0
# Seconds of load before the stall and after it.
AROUND = 2.0


def measure(
    seconds: float, counts: dict[str, int]
) -> tuple[list[Request], list[Look], Stall, dict[str, int]]:
    """Stops a server under load. Returns requests, health probes, and the holds left afterwards."""
    pause = Event()  # never set: waits for a while
    with running_store(*SIZE) as store, Fleet(store.runtime_dir, counts) as fleet:
        if not fleet.wait_hits(0.0):
            raise RuntimeError("a worker had no hit before the stall")
        with Prober(store.runtime_dir) as prober:
            pause.wait(min(AROUND, seconds))
            begin = now()
            store.suspend()
            try:
                pause.wait(seconds)
            finally:
                end = now()
                store.resume()
            if not fleet.wait_hits(end):
                raise RuntimeError("a worker had no hit after the stall")
            pause.wait(min(AROUND, seconds))
        requests = fleet.stop()
        return requests, prober.looks, Stall(begin, end), left_at(store)


def left_at(store: RunningStore) -> dict[str, int]:
    """Returns the holds that are left after all workers have ended."""
    held: dict[str, int] = {}

    def nothing() -> bool:
        with connect_admin(store.runtime_dir) as admin:
            stats = admin.stats()
        held["pins"] = stats.pin_count
        held["reserved"] = sum(each.reserved_slot_count for each in stats.arenas)
        held["quarantined"] = sum(each.quarantined_slot_count for each in stats.arenas)
        return not any(held.values())

    wait_until(nothing)
    return held


def document_of(
    seconds: float,
    counts: dict[str, int],
    measured: tuple[list[Request], list[Look], Stall, dict[str, int]],
    loads: tuple[float, float],
) -> dict[str, Any]:
    """Returns everything as one JSON value."""
    requests, looks, stall, left = measured
    config = ClientConfig()
    costs = [
        cost_of(kind, requests, stall, call_timeout=config.call_timeout)
        for kind, count in counts.items()
        if count
    ]
    hits = hits_after(requests, stall)
    return {
        "benchmark": "stall",
        "machine": machine.machine_facts(),
        "load_average": {"before": loads[0], "after": loads[1]},
        "method": {
            "stall_seconds": seconds,
            "workers": counts,
            "call_timeout_s": config.call_timeout,
            "request_budget_s": config.request_budget or config.call_timeout,
            "lease_ttl_s": config.ttl,
            "probe_deadline_s": DEADLINE,
            "added": "over the median of requests without the store in the same seconds",
        },
        "requests_during_stall": sum(each["requests"] for each in costs),
        "requests_that_waited": sum(each["waited"] for each in costs),
        "largest_added_s": max(each["largest_added_s"] for each in costs),
        "largest_store_s": max(each["largest_store_s"] for each in costs),
        "wrong_answers": sum(each.wrong for each in requests),
        **health_of_stall(looks, stall),
        "hits_after_s": {"median": round(median(hits), 4), "largest": round(max(hits), 4)},
        "left": left,
        "kinds": costs,
    }


def tables_of(document: dict[str, Any]) -> list[Table]:
    """Returns the figures for people."""
    kinds = Table(title="Requests during the stall", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("kind", "requests", "waited", "added s, largest", "median", "store s, largest"):
        kinds.add_column(heading, justify="left" if heading == "kind" else "right")
    for each in document["kinds"]:
        kinds.add_row(
            each["kind"],
            *(f"{each[key]:,}" for key in ("requests", "waited")),
            *(
                f"{each[key]:.3f}"
                for key in ("largest_added_s", "median_added_s", "largest_store_s")
            ),
        )
    rest = Table(title="Of the whole", title_justify="left", box=box.SIMPLE_HEAD, show_header=False)
    for key in ("wrong_answers", "not_serving_after_s", "serving_after_s", "hits_after_s", "left"):
        rest.add_row(key.replace("_", " "), str(document[key]))
    return [kinds, rest]


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take half a minute, with rougher figures.")] = False,
    seconds: Annotated[float, typer.Option(help="Seconds of the stall.")] = 0.0,
    clients: Annotated[int, typer.Option(min=0, help="Number of light workers.")] = 4,
    engines: Annotated[int, typer.Option(min=0, help="Number of workers with a tiny model.")] = 1,
) -> None:
    """Stops a server under load, and prints the cost and the time until it was noticed."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    stalled = seconds or (QUICK_SECONDS if quick else SECONDS)
    counts = {LIGHT: clients, ENGINE: engines}
    if not clients + engines:
        raise typer.BadParameter("set --clients or --engines to at least 1")
    before = machine.load_average()
    measured = measure(stalled, counts)
    document = document_of(stalled, counts, measured, (before, machine.load_average()))
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    console = table_console()
    for each in tables_of(document):
        console.print(each)


if __name__ == "__main__":
    typer.run(main)
