"""Pages in the memory of a GPU: opening, copying out, to tier 2 and back, and a hit's first token.

Without a CUDA device it says so and ends well. ``--device cpu`` runs the same code on host memory
with a model of no use, to try the code; ``--host`` measures two tiers of host memory alone.
"""

import json
import signal
import sys
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from transformers.utils.logging import disable_progress_bar

from inference_worker.engine.local_worker import model_namespace
from inference_worker.model.device import DeviceWork, use_threads
from inference_worker.model.model import page_model
from kvstore.logs import configure_logging
from kvstore_client import Client, ClientConfig
from kvstore_client.testing import running_store
from support import machine
from support.gpu.first_token import measure_first_token
from support.gpu.gather import measure_gather
from support.gpu.models import SHAPES, build_model
from support.gpu.open import measure_open
from support.gpu.plan import PAGE_TOKENS, Plan, device_facts, make_plan
from support.gpu.tables import tables
from support.gpu.tiers import measure_tiers
from support.table_console import table_console

# The most that a store allows, in seconds.
PATIENCE = 60.0
# One more page for each prompt, and some cold prompts beside the shared ones, in whole 2 MiB.
ROOM = 3
ALIGNMENT = 2 << 20


def measure(plan: Plan, console: Console) -> dict[str, Any]:
    """Returns all figures as one JSON value."""
    before = machine.load_average()
    console.print("Opening memory of several sizes ...")
    opened = measure_open(plan)
    console.print(f"Building a model of random weights, Qwen3's {plan.model} ...")
    # The namespace has the recipe of the weights: reading all of them takes a minute.
    digest = (f"{plan.model} benchmark".encode().hex() + "0" * 64)[:64]
    model = page_model(build_model(plan.model, plan.device), digest=digest)
    page_bytes = model.layout(PAGE_TOKENS).page_bytes
    pages = max(*plan.shared_tokens, plan.gather_tokens) // PAGE_TOKENS
    size = -(-(ROOM * pages + 256) * page_bytes // ALIGNMENT) * ALIGNMENT
    # One extent, because memory that grows during a measurement changes the times.
    arguments = ("--tier1-bytes", str(size), "--extent-bytes", str(size))
    config = ClientConfig(
        call_timeout=PATIENCE,
        connect_timeout=PATIENCE,
        wait_for_device=DeviceWork(model.device).wait,
    )
    with (
        running_store(*plan.store_device, *arguments) as store,
        Client(store.runtime_dir, config) as client,
    ):
        namespace = model_namespace(client, model, PAGE_TOKENS, "benchmark")
        if not namespace.wait_open(PATIENCE):
            raise RuntimeError(f"not opened: {namespace.failure}")
        console.print("Copying pages out ...")
        gathered = measure_gather(plan, model, namespace)
        console.print("Waiting for first tokens ...")
        first = measure_first_token(plan, model, namespace)
    console.print("Moving pages between tiers ...")
    moved = measure_tiers(plan)
    return {
        "benchmark": "gpu",
        "machine": {**machine.machine_facts(), **device_facts(plan.device)},
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {
            "model": plan.model,
            "rounds": plan.rounds,
            "page_tokens": PAGE_TOKENS,
            "page_bytes": page_bytes,
            "chunk_tokens": plan.chunk_tokens,
            "figure": "the median over the rounds; for ratios, that of the rounds' own",
        },
        "open": opened,
        "gather": gathered,
        "tiers": moved,
        "first_token": first,
    }


def measure_host(plan: Plan, console: Console) -> dict[str, Any]:
    """Returns the figures of copies between two tiers of the host, as one JSON value."""
    before = machine.load_average()
    console.print("Moving pages between tiers ...")
    rows = measure_tiers(plan)
    return {
        "benchmark": "gpu --host",
        "machine": machine.machine_facts(),
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {
            "rounds": plan.tier_rounds,
            "figure": "the median over the rounds; for ratios, that of the rounds' own",
        },
        "tiers": rows,
    }


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    quick: Annotated[bool, typer.Option(help="Use a smaller model and fewer rounds.")] = False,
    device: Annotated[
        str, typer.Option(help="The device: cuda:N, or cpu to try the code.")
    ] = "cuda:0",
    host: Annotated[bool, typer.Option(help="Measure only two tiers of host memory.")] = False,
    model: Annotated[str | None, typer.Option(help=f"Qwen3's shape: {', '.join(SHAPES)}.")] = None,
) -> None:
    """Measures opening, copying and the first token on a GPU."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    device = "cpu" if host else device
    if device != "cpu" and not torch.cuda.is_available():
        reason = "skipped: no CUDA device"
        skipped = {"benchmark": "gpu", "skipped": reason}
        sys.stdout.write((json.dumps(skipped) if as_json else reason) + "\n")
        return
    disable_progress_bar()
    if device == "cpu":
        # Threads that wait for each other cost such a small model more time than they save.
        use_threads(1)
    configure_logging("console", "warning")
    console = Console(stderr=True)
    document = (measure_host if host else measure)(make_plan(device, model, quick=quick), console)
    if as_json:
        sys.stdout.write(json.dumps(document, indent=1) + "\n")
        return
    shown = table_console()
    facts = ", ".join(f"{key} {value}" for key, value in document["machine"].items())
    shown.print(f"{facts}, load average {document['load_average']['before']}", style="dim")
    for table in tables(document):
        shown.print(table)


if __name__ == "__main__":
    typer.run(main)
