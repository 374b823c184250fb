"""Calls on lanes beside a store's sealed traffic, and without it, in turns on one store."""

from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import IO, Any, Final

from inference_worker.demo.valkey_server import running_valkey
from support import machine
from support.remote.traffic import Moved, Traffic, store_with_traffic
from support.rpc.cycle import prompt_of
from support.rpc.worker import attached_worker
from support.tails.background import insert
from support.tails.figures import figures_of, ratios
from support.tails.fleet import CALLERS, Fleet, fleet_of, joined
from support.tails.namespaces import PAGE_BYTES, key_of
from support.tails.open_loop import TOKENS, Latencies

ALONE, BESIDE = "alone", "beside"
STORE: Final = "store"
ENGINE_MEMORY: Final = "1gb"
# The traffic fills the engine in seconds. Its lives differ by depth alone within a bucket of
# minutes, so volatile-ttl would evict pages before they are read back.
EVICTION: Final = ("--maxmemory-policy", "allkeys-lru")
# Tier 1, with room for what the callers insert.
MEMORY: Final = (1 << 14) * PAGE_BYTES
CALLER_COUNT, CALLS_PER_SECOND = 4, 400.0
GIGA: Final = 1e9
BYTES_PER_SECOND: Final = GIGA


def measure_beside(folder: Path, log: IO[bytes], *, rounds: int, seconds: float) -> dict[str, Any]:
    """Returns the latencies of calls with and without traffic, and their ratios."""
    slices: dict[str, list[Latencies]] = {ALONE: [], BESIDE: []}
    moved: list[Moved] = []
    with ExitStack() as stack:
        engine = stack.enter_context(
            running_valkey(folder / "engine", log=log, memory=ENGINE_MEMORY, settings=EVICTION)
        )
        size = ("--tier1-bytes", str(MEMORY), "--extent-bytes", str(MEMORY // 4))
        store, traffic = stack.enter_context(store_with_traffic(engine, folder, *size))
        stack.callback(traffic.close)
        worker = stack.enter_context(attached_worker(store.runtime_dir, key=key_of(CALLERS)))
        fleet = stack.enter_context(fleet_of(CALLER_COUNT, {STORE: store.runtime_dir}))
        # Threads, lanes, connections and memory exist before the measurement begins.
        insert(worker, prompt_of(TOKENS))
        fleet.measure(STORE, 1.0, CALLS_PER_SECOND)
        _with_traffic(fleet, traffic, 1.0)
        for number in range(rounds):
            for way in (ALONE, BESIDE)[:: -1 if number % 2 else 1]:
                insert(worker, prompt_of(TOKENS))
                before = machine.cpu_seconds(store.pid)
                if way == BESIDE:
                    found, of = _with_traffic(fleet, traffic, seconds)
                    moved.append(of)
                else:
                    found = fleet.measure(STORE, seconds, CALLS_PER_SECOND)
                spent = machine.cpu_seconds(store.pid) - before
                slices[way].append(found._replace(cores=(spent / seconds,)))
    every = {way: joined(of) for way, of in slices.items()}
    rates = [each.byte_count / each.seconds / GIGA for each in moved]
    figures = {way: figures_of(of) for way, of in every.items()}
    return {
        "callers": CALLER_COUNT,
        "calls_per_second": CALLS_PER_SECOND,
        "rounds": rounds,
        "slice_seconds": seconds,
        "traffic_gb_per_s": round(median(rates), 3),
        "cores": {way: round(median(of.cores), 2) for way, of in every.items()},
        **figures,
        "ratios": ratios(figures[BESIDE], figures[ALONE]),
        "ratios_sent": ratios(*(_sent(figures[way]) for way in (BESIDE, ALONE))),
    }


def _sent(figures: dict[str, Any]) -> dict[str, Any]:
    """Returns the quantiles from the sending of each call."""
    return {name: of["sent"] for name, of in figures.items()}


def _with_traffic(fleet: Fleet, traffic: Traffic, seconds: float) -> tuple[Latencies, Moved]:
    traffic.begin(seconds, BYTES_PER_SECOND)
    found = fleet.measure(STORE, seconds, CALLS_PER_SECOND)
    return found, traffic.wait()
