"""What a hit costs, and 64 MiB of its KV, fetched and stored: ours beside LMCache's server.

Everything is measured in turns in one run. LMCache runs in an environment of its own, which
`make bench-peers` sets up; without it ours is measured alone. docs/peers.md has the table.
"""

import ctypes
import hashlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
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
from support.fetch_page import write_section
from support.fetch_store import OurWorker, our_workers
from support.fetch_tables import tables
from support.fetch_workload import BYTES_TOKENS, PAYLOAD_BYTES, TOKENS, Pace, Times, payload, repeat

# Rounds, and the pace of a slice: some four minutes, and half of one.
FULL, QUICK = (7, Pace(0.4, 3, 40)), (3, Pace(0.1, 2, 10))
WARM_UP = Pace(0.2, 2, 10)
LANE, GRPC, UNCHECKED = "kvstore, hot lane", "kvstore, gRPC", "no checksums"
AS_IT_IS = ClientConfig(call_timeout=30.0)
# A client takes the hot lane by itself, where there is one.
HAS_LANE = "hot_lane" in {each.name for each in fields(ClientConfig)}
WITHOUT_LANE: dict[str, Any] = {"hot_lane": False} if HAS_LANE else {}
OURS = LANE if HAS_LANE else GRPC
CONFIGS = {
    GRPC: replace(AS_IT_IS, **WITHOUT_LANE),
    UNCHECKED: replace(AS_IT_IS, page_checksums=False),
    OURS: AS_IT_IS,
}
REFERENCES = {"hit": OURS, "fetch": "memcpy", "store": "memcpy"}
PEERS = {
    "LMCache, ZMQ, 256": ("zmq", 256),
    "LMCache, gRPC, 256": ("grpc", 256),
    "LMCache, ZMQ, 16": ("zmq", 16),
}
CLOSEST = "LMCache, ZMQ, 256"
Slice = Callable[[Pace], Times]
# Cells that copy are measured with one thread of torch, and some with one for each core too.
THREADS = len(os.sched_getaffinity(0))
THREADED = f", {THREADS} threads"


def threaded(slice_: Slice, use_threads: Callable[[int], None]) -> Slice:
    """Return the same slice with a thread for each core, as far as torch takes them."""

    def measured(pace: Pace) -> Times:
        use_threads(THREADS)
        try:
            return slice_(pace)
        finally:
            use_threads(1)

    return measured


def our_cells(workers: dict[str, OurWorker], engine: EngineMemory) -> dict[Cell, Slice]:
    """Return what is measured of ours."""
    cells: dict[Cell, Slice] = {}
    worker, unchecked = workers[OURS], workers[UNCHECKED]
    for tokens in TOKENS:
        for name in dict.fromkeys((OURS, GRPC)):
            hit = partial(workers[name].hit, token_count=tokens)
            cells[Cell("hit", name, tokens)] = hit
            cells[Cell("hit", f"{name}, acquire", tokens)] = partial(hit, reserving=True)
        listed = partial(worker.hit, token_count=tokens, listed=True)
        cells[Cell("hit", f"{OURS}, of a list", tokens)] = listed
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
    copies = [Cell("fetch", "kvstore, copied out by layer", BYTES_TOKENS)]
    copies.append(Cell("store", f"kvstore, copied in by layer, {UNCHECKED}", BYTES_TOKENS))
    return cells | {
        cell.also(THREADED): threaded(cells[cell], torch.set_num_threads) for cell in copies
    }


def peer_cells(name: str, peer: lmcache_peer.LMCachePeer) -> dict[Cell, Slice]:
    """Return what is measured of a peer."""
    hits: dict[Cell, Slice] = {
        Cell("hit", name, tokens): partial(peer.hit, token_count=tokens) for tokens in TOKENS
    }
    calls = {"fetch": peer.fetch, "store": peer.store}
    moves: dict[Cell, Slice] = {
        Cell(part, name, BYTES_TOKENS): slice_ for part, slice_ in calls.items()
    }
    if name == CLOSEST:
        for cell, slice_ in list(moves.items()):
            moves[cell.also(THREADED)] = threaded(slice_, peer.use_threads)
    return hits | moves


def memcpy_cells() -> dict[Cell, Slice]:
    """Return a plain copy of as many bytes, from one place of this process to another."""
    source, target = (torch.ones(PAYLOAD_BYTES, dtype=torch.uint8) for _ in range(2))

    def once() -> list[int]:
        # As calls do, it lets others go first: on a busy machine that is to its advantage.
        time.sleep(0.001)
        began = perf_counter_ns()
        ctypes.memmove(target.data_ptr(), source.data_ptr(), PAYLOAD_BYTES)
        return [perf_counter_ns() - began]

    copy = partial(repeat, names=("whole",), once=once)
    return {Cell(part, "memcpy", BYTES_TOKENS): copy for part in ("fetch", "store")}


def started_peers(stack: ExitStack, content: bytes, left_out: dict[str, str]) -> dict[Cell, Slice]:
    """Start what can be had of the peers; note in ``left_out`` why one cannot be."""
    cells: dict[Cell, Slice] = {}
    python = lmcache_environment.interpreter()
    if not python:
        left_out["LMCache"] = "not set up: `make bench-peers` does it"
        return cells
    digest = hashlib.sha256(content).hexdigest()
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        for name, server in PEERS.items():
            try:
                peer, url = stack.enter_context(lmcache_peer.lmcache_peer(python, *server))
                fetched = peer.open(url, Path(file.name))
            except (OSError, RuntimeError) as error:
                left_out[name] = str(error)
                continue
            assert fetched == digest, "other bytes came back"
            cells |= peer_cells(name, peer)
    return cells


def measure(
    rounds: int, pace: Pace, *, peers: bool, left_out: dict[str, str]
) -> tuple[Rounds, list[float]]:
    """Return the slices of every cell, one a round, and the load average before each round."""
    results: Rounds = {}
    loads: list[float] = []
    content = payload()
    digest = hashlib.sha256(content).hexdigest()
    torch.set_num_threads(1)
    engine = EngineMemory()
    engine.fill(content)
    with ExitStack() as stack:
        workers = stack.enter_context(our_workers(CONFIGS))
        workers[OURS].publish(content)
        assert workers[OURS].verify(engine) == (digest, digest)
        cells = memcpy_cells() | our_cells(workers, engine)
        if peers:
            cells |= started_peers(stack, content, left_out)
        if pace == QUICK[1]:
            cells = {cell: slice_ for cell, slice_ in cells.items() if THREADED not in cell.name}
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
    page: Annotated[Path | None, typer.Option(help="Put the tables into this page too.")] = None,
    quick: Annotated[bool, typer.Option(help="Half a minute, rougher figures.")] = False,
    rounds: Annotated[int, typer.Option(help="Times that everything is measured.")] = 0,
    peers: Annotated[bool, typer.Option(help="Beside LMCache, where it is set up.")] = True,
) -> None:
    """Measure hits, fetches and stores of ours, and of LMCache where it is set up."""
    planned, pace = QUICK if quick else FULL
    rounds = rounds or planned
    before = machine.load_average()
    left_out: dict[str, str] = {}
    results, loads = measure(rounds, pace, peers=peers, left_out=left_out)
    for name, reason in left_out.items():
        print(f"Left out: {name}, {reason}", file=sys.stderr)
    document: dict[str, Any] = {
        "benchmark": "fetch",
        "machine": machine.machine_facts() | {"torch": torch.__version__},
        "load_average": {"before": before, "after": machine.load_average(), "rounds": loads},
        "method": {
            "rounds": rounds,
            "slice": pace._asdict(),
            "bytes": PAYLOAD_BYTES,
            "peer": f"lmcache {lmcache_peer.VERSION}",
            "left_out": left_out,
            "figure": "the median over the rounds of each round's own; raw_us: all of them",
        },
        "references": REFERENCES,
        "cells": cell_figures(results, REFERENCES, PAYLOAD_BYTES),
    }
    text = json.dumps(document)
    if output:
        output.write_text(text + "\n", encoding="utf-8")
    if page:
        write_section(page, document)
    if as_json:
        sys.stdout.write(text + "\n")
        return
    for table in tables(document):
        Console().print(table)


if __name__ == "__main__":
    typer.run(main)
