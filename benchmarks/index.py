"""The index at scale, in process: walks, inserts and evictions beside those of peers.

Everything is measured in turns in one run. SGLang's Python tree and its Rust core run in processes
of their own. Memory and the collector's pauses have other processes. The last line of ``--json``
is one JSON object.
"""

import gc
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from kvstore.service.clock import MONOTONIC
from kvstore.service.periodic_threads import Collector
from peers.environment import interpreter
from support import machine
from support.index.cases import Case, Size, evict_case, insert_case, match_case
from support.index.peer import SGLang, sglang
from support.index.scale import measure
from support.index.trace import prompts, replay
from support.one_processor import one_processor
from support.table_console import TABLE_WIDTH
from support.traces import readable

NODES = (1, 196, 1_563)
LEAVES = (1_000, 100_000, 1_000_000)
PAGES_A_NODE = (4, 32)
# Samples of a slice that the result keeps.
KEPT = 25
SLICE, QUICK_SLICE = 0.25, 0.05
ROUNDS, QUICK_ROUNDS = 7, 3
# Pages of the measurements that run in processes of their own.
SCALE, QUICK_SCALE, TINY_SCALE = 1_000_000, 100_000, 4_000
NAMESPACES = 10_000
NO_PEER = "not set up: run python benchmarks/peers/sglang_environment.py"
OURS = ("kvstore_verb", "kvstore_hash")
PEERS = {"sglang_python": "python", "sglang_rust": "rust"}


def cases(
    peers: dict[str, SGLang], size: Size, leaf_counts: Sequence[int]
) -> Iterator[Callable[[], Case]]:
    """Yields a builder for each case. The slowest builds come first, while the peers load."""
    for leaves in leaf_counts[::-1]:
        yield lambda leaves=leaves: evict_case(leaves, peers, size)  # type: ignore[misc]
    yield lambda: insert_case(peers)
    for nodes in NODES[::-1]:
        yield lambda nodes=nodes: match_case(nodes, peers, size)  # type: ignore[misc]


def figures(case: Case, rounds: int, seconds: float) -> dict[str, Any]:
    """Measures one case in turns. Returns medians of the rounds' medians, and raw samples."""
    raw: dict[str, list[list[float]]] = {who: [] for who in case.slices}
    for number in range(rounds):
        for who, call in list(case.slices.items())[:: -1 if number % 2 else 1]:
            raw[who].append(call(seconds))
    middle = {who: median(median(each) for each in times) for who, times in raw.items()}
    own = middle.pop("kvstore")
    ours = {who: round(middle.pop(who), 2) for who in OURS if who in middle}
    pairs = {
        who: median(
            median(theirs) / median(ours)
            for theirs, ours in zip(raw[who], raw["kvstore"], strict=True)
        )
        for who in middle
    }
    return {
        "name": case.name,
        "kvstore_us": round(own, 2),
        "kvstore_verb_us": ours.get("kvstore_verb"),
        "kvstore_hash_us": ours.get("kvstore_hash"),
        "peers": {who: round(each, 2) for who, each in middle.items()},
        "times_kvstore": {who: round(each, 2) for who, each in pairs.items()},
        "missing": case.missing,
        "fastest_us": {who: round(min(map(min, raw[who])), 2) for who in raw},
        "longest_us": round(max(max(each) for each in raw["kvstore"]), 1),
        "samples": {who: sum(map(len, times)) for who, times in raw.items()},
        "raw_medians_us": {who: [round(median(e), 2) for e in raw[who]] for who in raw},
        "raw_us": {who: [spread(each) for each in times] for who, times in raw.items()},
    }


def spread(samples: list[float]) -> list[float]:
    """Returns ``KEPT`` of a slice's samples, evenly spread and in their order."""
    step = max(len(samples) / KEPT, 1.0)
    return [round(samples[int(at * step)], 2) for at in range(min(KEPT, len(samples)))]


def memory_case(pages: int, pages_a_node: int) -> dict[str, Any]:
    """Returns bytes a page as a case of its own, although its figure is not microseconds."""
    found = measure("memory", pages, pages_a_node)
    name, value = f"bytes_per_page_{pages_a_node}", found["bytes_per_page"]
    return {"name": name, "unit": "bytes", "kvstore_us": value, "peers": {}, "measured": found}


def about() -> dict[str, Any]:
    """Returns the place and time of a document's measurements."""
    return {
        "benchmark": "index",
        "machine": machine.machine_facts(),
        "load_average": {"before": machine.load_average()},
    }


def run(*, quick: bool, tiny: bool) -> dict[str, Any]:
    """Measures everything and returns the document."""
    document = about()
    size = Size(quick)
    rounds, seconds = (QUICK_ROUNDS, QUICK_SLICE) if quick else (ROUNDS, SLICE)
    pages = TINY_SCALE if tiny else QUICK_SCALE if quick else SCALE
    found: list[dict[str, Any]] = []
    python = None if tiny else interpreter("sglang")
    Collector(MONOTONIC).begin()
    with ExitStack() as stack:
        peers = {
            who: stack.enter_context(sglang(python, kind)) for who, kind in PEERS.items() if python
        }
        for build in cases(peers, size, LEAVES[:1] if tiny else LEAVES):
            case = build()
            # The cache is old, like in a store that has run for a while.
            gc.freeze()
            if not python:
                case.missing |= dict.fromkeys(PEERS, NO_PEER)
            for peer in peers.values():
                peer.wait()
            with one_processor(peer.pid for peer in peers.values()):
                found.insert(0, figures(case, rounds, seconds))
            for peer in peers.values():
                peer.ask("drop", name=case.name)
            del case
            gc.unfreeze()
    found += [memory_case(pages, each) for each in PAGES_A_NODE]
    document |= {
        "method": {
            "rounds": rounds,
            "slice_seconds": seconds,
            "scale_pages": pages,
            "raw_samples_kept_of_a_slice": KEPT,
        },
        "cases": found,
        "collector": {
            kind: measure("pauses", pages, PAGES_A_NODE[0], kind) for kind in ("default", "ours")
        },
    }
    document["namespaces"] = measure("namespaces", TINY_SCALE if tiny else NAMESPACES)
    document["prompt"] = measure("prompt", SCALE)
    for each in found[-len(PAGES_A_NODE) :]:
        document[each["name"]] = each["kvstore_us"]
    document["load_average"]["after"] = machine.load_average()
    return document


def show(document: dict[str, Any]) -> None:
    """Prints tables for people."""
    table = Table("case", "kvstore, us", "whole verb", "peers, us", "times kvstore", "no figure")
    for each in document.get("cases", ()):
        peers = ", ".join(f"{who} {us}" for who, us in each["peers"].items())
        times = ", ".join(f"{who} {x}" for who, x in each.get("times_kvstore", {}).items())
        missing = ", ".join(f"{who}: {why}" for who, why in each.get("missing", {}).items())
        verb = str(each.get("kvstore_verb_us") or "")
        unit = each.get("unit", "")
        table.add_row(each["name"], f"{each['kvstore_us']} {unit}", verb, peers, times, missing)
    Console(width=TABLE_WIDTH).print(table)
    for name in ("collector", "namespaces", "prompt"):
        print(name, document.get(name))
    for each in document.get("trace", {}).get("passes", ()):
        print(each)


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Take under a minute, with rougher figures.")] = False,
    tiny: Annotated[bool, typer.Option(help="Only try the code, without peers.")] = False,
    trace: Annotated[Path | None, typer.Option(help="A trace to replay.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Number of the trace's requests.")] = 12_031,
    passes: Annotated[int, typer.Option(help="Number of replays of the trace.")] = 10,
    only_trace: Annotated[bool, typer.Option(help="Replay only the trace.")] = False,
) -> None:
    """Measures the index beside its peers."""
    if only_trace and trace is None:
        raise typer.BadParameter("--only-trace needs --trace")
    # A wrong trace is reported before minutes of measuring.
    with readable():
        asked = None if trace is None else prompts(trace, requests)
    document = about() if only_trace else run(quick=quick or tiny, tiny=tiny)
    if asked is not None:
        document["trace"] = replay(asked, passes, requests)
        document["load_average"]["after"] = machine.load_average()
    if as_json:
        sys.stdout.write(json.dumps(document) + "\n")
    else:
        show(document)


if __name__ == "__main__":
    typer.run(main)
