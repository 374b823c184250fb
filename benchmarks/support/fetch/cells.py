"""The cells of fetch.py: kvstore's, LMCache's, and a plain copy."""

import ctypes
import hashlib
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import torch

from kvstore_client import ClientConfig
from peers import environment, lmcache_peer
from support.fetch.calls import CallsAlone
from support.fetch.engine import EngineMemory
from support.fetch.figures import Cell
from support.fetch.store import OurWorker
from support.fetch.workload import BYTES_TOKENS, PAYLOAD_BYTES, TOKENS, Pace, Times, repeat

LANE, GRPC, UNCHECKED = "kvstore, hot lane", "kvstore, gRPC", "no checksums"
AS_IT_IS = ClientConfig(call_timeout=30.0)
# By default a client uses the hot lane if there is one.
HAS_LANE = "hot_lane" in {each.name for each in fields(ClientConfig)}
WITHOUT_LANE: dict[str, Any] = {"hot_lane": False} if HAS_LANE else {}
OURS = LANE if HAS_LANE else GRPC
CONFIGS = {
    GRPC: replace(AS_IT_IS, **WITHOUT_LANE),
    UNCHECKED: replace(AS_IT_IS, page_checksums=False),
    OURS: AS_IT_IS,
}
# True if the calls use lanes.
ALONE = {f"{OURS}, calls alone": HAS_LANE, f"{GRPC}, calls alone": False}
REFERENCES = {"hit": OURS, "fetch": "memcpy", "store": "memcpy"}
PEERS = {
    "LMCache, ZMQ, 256": ("zmq", 256),
    "LMCache, gRPC, 256": ("grpc", 256),
    "LMCache, ZMQ, 16": ("zmq", 16),
}
# Consecutive hits, all timed, whose releases are sent without waiting.
IN_A_ROW = ", in a row"
CLOSEST = "LMCache, ZMQ, 256"
ROWS = (CLOSEST, "LMCache, gRPC, 256")
Slice = Callable[[Pace], Times]
# Copies are measured with one thread of torch, and some also with one for each core.
THREADS = len(os.sched_getaffinity(0))
THREADED = f", {THREADS} threads"


def threaded(slice_: Slice, use_threads: Callable[[int], None]) -> Slice:
    """Returns the same slice with a thread for each core, as far as torch uses them."""

    def measured(pace: Pace) -> Times:
        use_threads(THREADS)
        try:
            return slice_(pace)
        finally:
            use_threads(1)

    return measured


def our_cells(
    workers: dict[str, OurWorker], alone: dict[str, CallsAlone], engine: EngineMemory
) -> dict[Cell, Slice]:
    """Returns the cells of kvstore."""
    cells: dict[Cell, Slice] = {}
    worker, unchecked = workers[OURS], workers[UNCHECKED]
    for tokens in TOKENS:
        for name in dict.fromkeys((OURS, GRPC)):
            hit = partial(workers[name].hit, token_count=tokens)
            cells[Cell("hit", name, tokens)] = hit
            cells[Cell("hit", f"{name}, acquire", tokens)] = partial(hit, reserving=True)
        for name, calls in alone.items():
            cells[Cell("hit", name, tokens)] = partial(calls.hit, token_count=tokens)
            in_a_row = Cell("hit", name, tokens).also(IN_A_ROW)
            cells[in_a_row] = partial(calls.hits_in_a_row, token_count=tokens)
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
    """Returns the cells of a peer."""
    hits: dict[Cell, Slice] = {
        Cell("hit", name, tokens): partial(peer.hit, token_count=tokens) for tokens in TOKENS
    }
    if name in ROWS:
        hits |= {
            cell.also(IN_A_ROW): partial(peer.hits_in_a_row, token_count=cell.tokens)
            for cell in hits
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
    """Returns a plain copy of as many bytes, from one place of this process to another."""
    source, target = (torch.ones(PAYLOAD_BYTES, dtype=torch.uint8) for _ in range(2))

    def once() -> list[int]:
        # It yields like calls do, which helps it on a busy machine.
        time.sleep(0.001)
        began = perf_counter_ns()
        ctypes.memmove(target.data_ptr(), source.data_ptr(), PAYLOAD_BYTES)
        return [perf_counter_ns() - began]

    copy = partial(repeat, names=("whole",), once=once)
    return {Cell(part, "memcpy", BYTES_TOKENS): copy for part in ("fetch", "store")}


def started_peers(stack: ExitStack, content: bytes, left_out: dict[str, str]) -> dict[Cell, Slice]:
    """Starts the available peers. Records in ``left_out`` why another one is missing."""
    cells: dict[Cell, Slice] = {}
    python = environment.interpreter("lmcache")
    if not python:
        left_out["LMCache"] = "not set up: run `make bench-peers`"
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
            assert fetched == digest, "the fetched bytes differ"
            cells |= peer_cells(name, peer)
    return cells
