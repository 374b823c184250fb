"""Measures the workloads and puts everything into one JSON value."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from statistics import median
from typing import Any

from inference_worker.demo.reference import Reference, load_reference
from inference_worker.model.device import threads_for, use_threads
from inference_worker.model.model import load_model, model_folder
from support import machine
from support.workloads.plan import Plan
from support.workloads.run import Rows, Runner
from support.workloads.stock import beside_stock
from support.workloads.summary import miss_summary, workload_summary
from support.workloads.text import Text
from support.workloads.world import workload_world


def measure(
    plan: Plan,
    *,
    model: str,
    wanted: Sequence[str],
    two_workers: bool,
    threads: int,
    seed: int,
    say: Callable[[str], None],
) -> dict[str, Any]:
    """Runs the wanted workloads. ``summary`` is the main line, and the rest explains it.

    It computes with ``threads`` threads. 0 means the default of ``kvstore-worker``.
    """
    before, begin = machine.load_average(), time.monotonic()
    say(f"loading {model}")
    loaded = load_model(model)
    rows: dict[str, Rows] = {}
    misses: dict[int, Rows] = {}
    chosen = use_threads(threads_for(model, threads or None))
    with workload_world(model, loaded, plan, two_workers=two_workers, threads=chosen) as world:
        text, reference = Text(loaded.tokenizer, seed), _reference(model)
        runner = Runner(world, text, reference, seed, say)
        say("warming up")
        runner.warm_up(plan.longest // 2)
        if "chat" in wanted:
            rows["chat"] = runner.chat(plan.chat)
        if "rag" in wanted:
            rows["rag"] = runner.rag(plan.rag)
        if "mixed" in wanted:
            rows["mixed"] = runner.mixed(plan.mixed)
        if "miss" in wanted:
            misses = runner.miss(plan.miss)
        if "batch" in wanted:
            rows["batch"] = runner.batch(plan.batch)
        lengths = {name: _typical_length(each) for name, each in rows.items()}
        say("beside stock transformers")
        stock = beside_stock(
            reference(), world.without, text, sorted(set(lengths.values())), plan.stock_rounds
        )
        names = world.names
    found = {name: workload_summary(name, rows[name]) for name in wanted if name in rows}
    summary: dict[str, Any] = {
        name: {**each["headline"], "baseline_vs_stock": stock[lengths[name]]}
        for name, each in found.items()
    }
    document: dict[str, Any] = {
        "benchmark": "workloads",
        "machine": {
            **machine.machine_facts(),
            **{name: version(name) for name in ("torch", "transformers")},
            "threads": chosen,
        },
        "load_average": {"before": before, "after": machine.load_average()},
        "seconds": round(time.monotonic() - begin),
        "method": {
            "model": model,
            "dtype": loaded.layout(1).dtype,
            "variants": names,
            "seed": seed,
            "plan": asdict(plan),
            "speedup": "median of the requests' own ratios, over those that could have hit",
            "stock_lengths": lengths,
        },
        "workloads": found,
    }
    if misses:
        document["miss_overhead"] = miss_summary(misses)
        short = ("bound", "added", "interval", "met")
        summary["miss_overhead"] = {name: document["miss_overhead"][name] for name in short}
    summary["machine"] = {**document["machine"], "load_average": document["load_average"]}
    return {**document, "summary": summary}


def _reference(model: str) -> Callable[[], Reference]:
    """Loads stock transformers once, at its first use."""
    return cache(lambda: load_reference(model_folder(model)))


def _typical_length(rows: Rows) -> int:
    return round(median(len(each.ids) for each in rows.asked))
