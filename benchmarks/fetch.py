"""What a hit costs, and 64 MiB of its KV, fetched and stored: ours beside LMCache's server.

Everything is measured in turns in one run. LMCache runs in an environment of its own, which
`make bench-peers` sets up; without it ours is measured alone. docs/peers.md has the table.
"""

import ctypes
import hashlib
import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track

from kvstore_client import ClientConfig
from peers import lmcache_environment, lmcache_peer
from support import machine
from support.fetch_engine import EngineMemory
from support.fetch_figures import Cell, Rounds, cell_figures
from support.fetch_store import OurWorker, our_workers
from support.fetch_tables import tables
from support.fetch_workload import BYTES_TOKENS, PAYLOAD_BYTES, TOKENS, Pace, Times, payload, repeat

# Rounds, and the pace of a slice: about three minutes, and half of one.
FULL, QUICK = (9, Pace(0.4, 3, 40)), (3, Pace(0.1, 2, 10))
WARM_UP = Pace(0.2, 2, 10)
GRPC, UNCHECKED = "kvstore, gRPC", "no checksums"
REFERENCES = {"hit": GRPC, "fetch": "memcpy", "store": "memcpy"}
CONFIGS = {
    GRPC: ClientConfig(call_timeout=30.0),
    UNCHECKED: ClientConfig(call_timeout=30.0, page_checksums=False),
}
PEERS = {
    "LMCache, ZMQ, 256": ("zmq", 256),
    "LMCache, gRPC, 256": ("grpc", 256),
    "LMCache, ZMQ, 16": ("zmq", 16),
}
Slice = Callable[[Pace], Times]


def our_cells(workers: dict[str, OurWorker], engine: EngineMemory) -> dict[Cell, Slice]:
    """Return what is measured of ours."""
    cells: dict[Cell, Slice] = {}
    worker, unchecked = workers[GRPC], workers[UNCHECKED]
    for tokens in TOKENS:
        hit = partial(worker.hit, token_count=tokens)
        cells[Cell("hit", GRPC, tokens)] = hit
        cells[Cell("hit", f"{GRPC}, of a list", tokens)] = partial(hit, listed=True)
        cells[Cell("hit", f"{GRPC}, acquire", tokens)] = partial(hit, reserving=True)
    gathers = {
        "in place": None,
        "pages copied out": engine.gather_pages,
        "copied out by layer": engine.gather_layers,
    }
    for name, copy in gathers.items():
        cells[Cell("fetch", f"kvstore, {name}", BYTES_TOKENS)] = partial(worker.fetch, copy=copy)
    scatters = {"in place": None, "copied in by layer": engine.scatter_layers}
    for name, copy in scatters.items():
        for each, checks in ((worker, "checksums"), (unchecked, UNCHECKED)):
            cell = Cell("store", f"kvstore, {name}, {checks}", BYTES_TOKENS)
            cells[cell] = partial(each.store, copy=copy)
    return cells


def peer_cells(name: str, peer: lmcache_peer.LMCachePeer) -> dict[Cell, Slice]:
    """Return what is measured of a peer."""
    hits = {Cell("hit", name, tokens): partial(peer.hit, token_count=tokens) for tokens in TOKENS}
    return {
        **hits,
        Cell("fetch", name, BYTES_TOKENS): peer.fetch,
        Cell("store", name, BYTES_TOKENS): peer.store,
    }


def memcpy_cells() -> dict[Cell, Slice]:
    """Return a plain copy of as many bytes, from one place of this process to another."""
    source, target = (torch.ones(PAYLOAD_BYTES, dtype=torch.uint8) for _ in range(2))

    def once() -> list[int]:
        began = perf_counter_ns()
        ctypes.memmove(target.data_ptr(), source.data_ptr(), PAYLOAD_BYTES)
        return [perf_counter_ns() - began]

    copy = partial(repeat, names=("whole",), once=once)
    return {Cell(part, "memcpy", BYTES_TOKENS): copy for part in ("fetch", "store")}


def measure(
    python: Path | None, rounds: int, pace: Pace, threads: int
) -> tuple[Rounds, list[float]]:
    """Return the slices of every cell, one a round, and the load average before each round."""
    results: Rounds = {}
    loads: list[float] = []
    content = payload()
    digest = hashlib.sha256(content).hexdigest()
    engine = EngineMemory()
    engine.fill(content)
    with ExitStack() as stack:
        workers = stack.enter_context(our_workers(CONFIGS))
        workers[GRPC].publish(content)
        assert workers[GRPC].verify(engine) == (digest, digest)
        cells = memcpy_cells() | our_cells(workers, engine)
        with tempfile.NamedTemporaryFile() as file:
            file.write(content)
            file.flush()
            for name, server in PEERS.items():
                if not python:
                    break
                started = lmcache_peer.lmcache_peer(python, *server, threads)
                peer, url = stack.enter_context(started)
                assert peer.open(url, Path(file.name)) == digest, "other bytes came back"
                cells |= peer_cells(name, peer)
        for slice_ in cells.values():
            slice_(WARM_UP)
        console = Console(stderr=True)
        for number in track(
            range(rounds), "Measuring", console=console, disable=not console.is_terminal
        ):
            loads.append(machine.load_average())
            for cell, slice_ in list(cells.items())[:: -1 if number % 2 else 1]:
                results.setdefault(cell, []).append(slice_(pace))
    return {cell: results[cell] for cell in cells}, loads


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON value here too.")] = None,
    quick: Annotated[bool, typer.Option(help="Half a minute, rougher figures.")] = False,
    rounds: Annotated[int, typer.Option(help="Times that everything is measured.")] = 0,
    torch_threads: Annotated[int, typer.Option(min=1, help="On both sides.")] = 1,
    peers: Annotated[bool, typer.Option(help="Beside LMCache, where it is set up.")] = True,
) -> None:
    """Measure hits, fetches and stores of ours, and of LMCache where it is set up."""
    python = lmcache_environment.interpreter() if peers else None
    if peers and not python:
        print("LMCache is not set up and left out: `make bench-peers` does both", file=sys.stderr)
    torch.set_num_threads(torch_threads)
    planned, pace = QUICK if quick else FULL
    rounds = rounds or planned
    before = machine.load_average()
    results, loads = measure(python, rounds, pace, torch_threads)
    document: dict[str, Any] = {
        "benchmark": "fetch",
        "machine": machine.machine_facts() | {"torch": torch.__version__},
        "load_average": {"before": before, "after": machine.load_average(), "rounds": loads},
        "method": {
            "rounds": rounds,
            "slice": pace._asdict(),
            "bytes": PAYLOAD_BYTES,
            "torch_threads": torch_threads,
            "peer": f"lmcache {lmcache_peer.VERSION}" if python else None,
            "figure": "the median over the rounds of each round's own; raw_us: all of them",
        },
        "references": REFERENCES,
        "cells": cell_figures(results, REFERENCES, PAYLOAD_BYTES),
    }
    text = json.dumps(document)
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    if as_json:
        sys.stdout.write(text + "\n")
        return
    for table in tables(document):
        Console().print(table)


if __name__ == "__main__":
    typer.run(main)
