"""The effect of other requests on an answer, and the cost of the deterministic mode.

docs/determinism.md has its tables.
"""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from rich.console import Console
from rich.table import Table
from transformers.utils.logging import disable_progress_bar

from inference_worker.model.device import use_threads
from inference_worker.model.model import PagedModel, load_model
from inference_worker.model.names import GEMMA
from support import machine
from support.determinism.cost import cost_ratios, thread_ratios, work_of
from support.determinism.logits import compare_ways
from support.determinism.rig import DeterminismRig
from support.table_console import table_console

TINY: Final = ("tiny", "tiny-llama", "tiny-gemma3")
TEXT: Final = Path(__file__).parents[1] / "docs"
MODES: Final = {"plain": False, "deterministic": True}


def texts_of(model: PagedModel, count: int, length: int) -> list[torch.Tensor]:
    """Cuts this repository's documents into ``count`` texts of ``length`` tokens."""
    documents = "\n".join(file.read_text("utf-8") for file in sorted(TEXT.glob("*.md")))
    ids = torch.tensor(model.tokenizer.encode(documents[: 20 * count * length]))
    return list(ids[: count * length].view(count, length))


def measure(
    source: str, *, texts: int, context: int, positions: int, rounds: int
) -> dict[str, Any]:
    """Returns all figures of one model."""
    models = {name: load_model(source, deterministic=is_on) for name, is_on in MODES.items()}
    ids = texts_of(models["plain"], texts, context + positions)
    rigs = {name: DeterminismRig(model, ids) for name, model in models.items()}
    logits = {
        name: dict(compare_ways(rig, texts, context, positions)) for name, rig in rigs.items()
    }
    work = work_of(context, texts)
    return {
        "model": source,
        "context": context,
        "logits": logits,
        "cost": cost_ratios(rigs["plain"], rigs["deterministic"], work, rounds),
        "threads": thread_ratios(rigs["plain"], work, rounds),
    }


def logit_table(logits: dict[str, Any]) -> Table:
    """Returns the number of positions with other logits, by the way to compute them."""
    table = Table("")
    for heading in ("positions", "other bits", "largest", "other token", "deterministic"):
        table.add_column(heading, no_wrap=True)
    for name, plain in logits["plain"].items():
        table.add_row(
            name,
            str(plain["positions"]),
            str(plain["positions_with_other_bits"]),
            f"{plain['largest_difference']:.1e}",
            str(plain["changed_tokens"]),
            str(logits["deterministic"][name]["positions_with_other_bits"]),
        )
    return table


def show(found: dict[str, Any], console: Console) -> None:
    """Prints a model's tables."""
    console.print(found["model"], logit_table(found["logits"]))
    for name, each in found["cost"].items():
        threads = found["threads"][name]["two_threads_over_one"]
        console.print(f"{name}: {each['ratio']} of the time; two threads: {threads} of one's")


def main(
    *,
    json_report: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Take half a minute, with one tiny model.")
    ] = False,
    threads: Annotated[int, typer.Option(help="Threads of the comparisons and the cost.")] = 1,
) -> None:
    """Measures and prints the tables. Exits with 1 if the deterministic mode's bits differ."""
    console = table_console(stderr=json_report)
    disable_progress_bar()
    use_threads(threads)
    before = machine.load_average()
    plans: dict[str, dict[str, int]] = {
        name: {"texts": 32, "context": 600, "positions": 10, "rounds": 3} for name in TINY
    }
    plans[GEMMA] = {"texts": 32, "context": 200, "positions": 4, "rounds": 2}
    if quick:
        plans = {TINY[0]: {"texts": 8, "context": 200, "positions": 6, "rounds": 2}}
    models = []
    for name, plan in plans.items():
        models.append(measure(name, **plan))
        show(models[-1], console)
    report = {
        "benchmark": "determinism",
        "machine": {
            **machine.machine_facts(),
            "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {
            "threads": threads,
            "cost": "CPU time, in turns; the median of the rounds' own ratios",
            "threads_compared": "wall-clock time, in turns; the median of the rounds' ratios",
        },
        "models": models,
    }
    if json_report:
        sys.stdout.write(json.dumps(report) + "\n")
    exact = [each for model in models for each in model["logits"]["deterministic"].values()]
    raise typer.Exit(1 if any(each["positions_with_other_bits"] for each in exact) else 0)


if __name__ == "__main__":
    typer.run(main)
