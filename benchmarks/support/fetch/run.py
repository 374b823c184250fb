"""A run of fetch.py, or of a part of it: everything in turns, and its results."""

import hashlib
import sys
from collections.abc import Collection
from contextlib import ExitStack
from typing import Any

import torch
from rich.console import Console
from rich.progress import track

from peers import lmcache_peer
from support import machine
from support.fetch.calls import calls_alone
from support.fetch.cells import (
    ALONE,
    CONFIGS,
    OURS,
    REFERENCES,
    THREADED,
    memcpy_cells,
    our_cells,
    started_peers,
)
from support.fetch.engine import EngineMemory
from support.fetch.figures import Rounds, cell_figures
from support.fetch.store import our_store, our_workers
from support.fetch.workload import PAYLOAD_BYTES, Pace, payload

# Rounds, and the pace of a slice: about four minutes, or half a minute.
FULL, QUICK = (7, Pace(0.4, 3, 40)), (3, Pace(0.1, 2, 10))
WARM_UP = Pace(0.2, 2, 10)


def run(
    *, quick: bool, rounds: int = 0, peers: bool = True, parts: Collection[str] = tuple(REFERENCES)
) -> dict[str, Any]:
    """Measures ``parts`` of the benchmark, beside the peers that are set up.

    Returns everything as one JSON value. Prints to stderr which peer was left out, and why.
    """
    planned, pace = QUICK if quick else FULL
    rounds = rounds or planned
    before = machine.load_average()
    left_out: dict[str, str] = {}
    results, loads = measure(rounds, pace, parts, peers=peers, left_out=left_out)
    for name, reason in left_out.items():
        sys.stderr.write(f"Left out: {name}, {reason}\n")
    return {
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


def measure(
    rounds: int, pace: Pace, parts: Collection[str], *, peers: bool, left_out: dict[str, str]
) -> tuple[Rounds, list[float]]:
    """Returns the slices of every cell, one a round, and the load average before each round."""
    results: Rounds = {}
    loads: list[float] = []
    content = payload()
    digest = hashlib.sha256(content).hexdigest()
    torch.set_num_threads(1)
    engine = EngineMemory()
    engine.fill(content)
    with ExitStack() as stack:
        folder = stack.enter_context(our_store())
        workers = stack.enter_context(our_workers(folder, CONFIGS))
        alone = stack.enter_context(calls_alone(folder, ALONE))
        workers[OURS].publish(content)
        assert workers[OURS].verify(engine) == (digest, digest)
        cells = memcpy_cells() | our_cells(workers, alone, engine)
        if peers:
            cells |= started_peers(stack, content, left_out)
        cells = {cell: slice_ for cell, slice_ in cells.items() if cell.part in parts}
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
