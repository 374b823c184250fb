"""The time until a server is SERVING and a namespace open, and matches beside growth."""

import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

from kvstore_client import Client, ClientConfig, Namespace, NamespaceIdentity, PageLayout
from kvstore_client.testing import RunningStore, running_store
from kvstore_client.values.page_layout import OpaqueContent
from support.start.program import VARIABLE
from support.start.ways import Way

PROGRAM = (str(Path(__file__).with_name("program.py")),)
GIB = 1 << 30
PAGE_TOKENS, PAGE_BYTES = 16, 2 << 20
LAYOUT = PageLayout(PAGE_TOKENS, PAGE_BYTES, OpaqueContent(b"start"))
IDENTITY = NamespaceIdentity(b"start")
# Share of an extent's slots: to reserve more than three quarters makes the arena grow.
RESERVED = 0.9
LIMIT = 60.0
# Seconds of matches without other work, and matches between two checks of the log.
QUIET_SECONDS = 2.0
QUICK_QUIET_SECONDS = 0.5
MATCHES = 20


def measure_servers(
    ways: list[Way], extent_bytes: int, rounds: int, *, quick: bool
) -> dict[str, Any]:
    """Returns the figures of each way, in turns: seconds, and milliseconds of matches.

    ``serving_s`` is from the start of a server whose tier 1 has two extents until it is SERVING.
    ``opened_s`` is from the request for a namespace until it is open, its first extent mapped.
    ``grown_s`` is from the reservation that needs the second extent until the server has it.
    ``quiet`` and ``growing`` are matches of one client, without and beside that growth.
    """
    runs: dict[str, list[dict[str, Any]]] = {way.name: [] for way in ways}
    for number in range(rounds):
        for way in ways[:: -1 if number % 2 else 1]:
            seconds = QUICK_QUIET_SECONDS if quick else QUIET_SECONDS
            runs[way.name].append(_run(way, extent_bytes, seconds))
    return {name: _summary(each) for name, each in runs.items()}


def _run(way: Way, extent_bytes: int, quiet_seconds: float) -> dict[str, Any]:
    settings = (
        *("--tier1-bytes", str(2 * extent_bytes), "--extent-bytes", str(extent_bytes)),
        *("--hugepages", way.hugepages.value),
    )
    with (
        patch.dict(os.environ, {VARIABLE: way.fill}),
        running_store(*settings, start=False, program=PROGRAM) as store,
    ):
        began = time.perf_counter()
        store.start()
        serving = time.perf_counter() - began
        with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
            began = time.perf_counter()
            namespace = client.namespace(IDENTITY, LAYOUT)
            assert namespace.wait_open(LIMIT), namespace.failure
            opened = time.perf_counter() - began
            return {
                "serving_s": serving,
                "opened_s": opened,
                **_matches(store, namespace, extent_bytes, quiet_seconds),
            }


def _matches(
    store: RunningStore, namespace: Namespace, extent_bytes: int, quiet_seconds: float
) -> dict[str, Any]:
    tokens = list(range(64 * PAGE_TOKENS))
    end = time.perf_counter() + quiet_seconds
    quiet = _time_matches(namespace, tokens, lambda: time.perf_counter() < end)
    count = int(extent_bytes // PAGE_BYTES * RESERVED)
    began = time.perf_counter()
    with namespace.acquire(list(range(count * PAGE_TOKENS)), total_page_count=count) as acquired:
        assert acquired.reservation is not None
        growing = _time_matches(namespace, tokens, lambda: _grows(store, began + LIMIT))
        grown = time.perf_counter() - began
    return {"grown_s": grown, "quiet_ms": quiet, "growing_ms": growing}


def _grows(store: RunningStore, latest: float) -> bool:
    """Returns whether the second extent is still missing; raises if it never comes."""
    if store.log.count("extent_added") > 1:
        return False
    if time.perf_counter() > latest:
        raise TimeoutError(store.log)
    return True


def _time_matches(
    namespace: Namespace, tokens: list[int], go_on: Callable[[], bool]
) -> list[float]:
    """Returns the milliseconds of each match with its release, while ``go_on`` returns True."""
    times: list[float] = []
    while go_on():
        for _ in range(MATCHES):
            began = time.perf_counter()
            with namespace.match(tokens) as found:
                assert found.failure is None
            times.append((time.perf_counter() - began) * 1e3)
    return times


def _summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    times = {
        name: [each for run in runs for each in run[f"{name}_ms"]] for name in ("quiet", "growing")
    }
    return {
        **{
            name: round(median(run[name] for run in runs), 4)
            for name in ("serving_s", "opened_s", "grown_s")
        },
        **{name: _spread(values) for name, values in times.items()},
    }


def _spread(values: list[float]) -> dict[str, float]:
    if len(values) < MATCHES:
        return {"samples": len(values)}
    return {
        "samples": len(values),
        "p50_ms": round(median(values), 3),
        "p99_ms": round(quantiles(values, n=100)[-1], 3),
        "max_ms": round(max(values), 3),
    }
