"""Calls on lanes beside a store's sealed traffic, beside another store's, and without any.

They take turns on one store. The other store's traffic shares the processors, the memory and the
engine with the calls, but no interpreter's lock.
"""

from collections.abc import Sequence
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

ALONE, BESIDE, ELSEWHERE = "alone", "beside", "elsewhere"
WAYS: Final = (ALONE, BESIDE, ELSEWHERE)
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
    slices: dict[str, list[Latencies]] = {way: [] for way in WAYS}
    moved: dict[str, list[Moved]] = {way: [] for way in (BESIDE, ELSEWHERE)}
    with ExitStack() as stack:
        engine = stack.enter_context(
            running_valkey(folder / "engine", log=log, memory=ENGINE_MEMORY, settings=EVICTION)
        )
        size = ("--tier1-bytes", str(MEMORY), "--extent-bytes", str(MEMORY // 4))
        pairs = {}
        for way in moved:
            (folder / way).mkdir()
            pairs[way] = stack.enter_context(store_with_traffic(engine, folder / way, *size))
        traffic = {way: of for way, (_, of) in pairs.items()}
        store, _ = pairs[BESIDE]
        worker = stack.enter_context(attached_worker(store.runtime_dir, key=key_of(CALLERS)))
        fleet = stack.enter_context(fleet_of(CALLER_COUNT, {STORE: store.runtime_dir}))
        # Threads, lanes, connections and memory exist before the measurement begins.
        insert(worker, prompt_of(TOKENS))
        fleet.measure(STORE, 1.0, CALLS_PER_SECOND)
        for each in traffic.values():
            _with_traffic(fleet, each, 1.0)
        for number in range(rounds):
            for way in WAYS[:: -1 if number % 2 else 1]:
                insert(worker, prompt_of(TOKENS))
                before = machine.cpu_seconds(store.pid)
                if way == ALONE:
                    found = fleet.measure(STORE, seconds, CALLS_PER_SECOND)
                else:
                    found, of = _with_traffic(fleet, traffic[way], seconds)
                    moved[way].append(of)
                spent = machine.cpu_seconds(store.pid) - before
                slices[way].append(found._replace(cores=(spent / seconds,)))
    every = {way: joined(of) for way, of in slices.items()}
    figures = {way: figures_of(of) for way, of in every.items()}
    return {
        "callers": CALLER_COUNT,
        "calls_per_second": CALLS_PER_SECOND,
        "rounds": rounds,
        "slice_seconds": seconds,
        "traffic_gb_per_s": {way: _rate(of) for way, of in moved.items()},
        "cores": {way: round(median(of.cores), 2) for way, of in every.items()},
        **figures,
        "ratios": {way: ratios(figures[way], figures[ALONE]) for way in moved},
        "ratios_sent": {
            way: ratios(*(_sent(figures[each]) for each in (way, ALONE))) for way in moved
        },
    }


def _rate(moved: Sequence[Moved]) -> float:
    """Returns the median of the slices' gigabytes a second."""
    return round(median(each.byte_count / each.seconds / GIGA for each in moved), 3)


def _sent(figures: dict[str, Any]) -> dict[str, Any]:
    """Returns the quantiles from the sending of each call."""
    return {name: of["sent"] for name, of in figures.items()}


def _with_traffic(fleet: Fleet, traffic: Traffic, seconds: float) -> tuple[Latencies, Moved]:
    traffic.begin(seconds, BYTES_PER_SECOND)
    found = fleet.measure(STORE, seconds, CALLS_PER_SECOND)
    return found, traffic.wait()
