"""The value of a neighbour's prefix to SGLang: two servers of a host, one of which saw the prompt.

Beside kvstore's linker it measures SGLang alone, HiCache over the store, and HiCache with SGLang's
own files in memory. Needs .venv-sglang (`make test-sglang`), whose stand-ins HiCache needs
on a CPU.
"""

import json
import random
import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from support import machine
from support.sglang import models
from support.sglang.first_token import Setting, measure, rows
from support.sglang.server import SGLANG_PYTHON
from support.sglang.store_flags import LINKER
from support.sglang.ways import WAYS

PINS = Path(__file__).parents[1] / "tests" / "sglang" / "sglang_requirements.txt"
ROUNDS, REQUESTS = 5, 3
PROMPT_TOKENS = 1_500
ARGUMENTS = (
    *("--dtype", "float32", "--page-size", "16", "--random-seed", "0"),
    # A prompt in one step, like on a machine with more memory.
    *("--max-total-tokens", "32768", "--chunked-prefill-size", "2048"),
)


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON value to this file.")] = None,
    quick: Annotated[
        bool, typer.Option(help="Measure kvstore's linker only, a tiny model, one round.")
    ] = False,
    model: Annotated[str, typer.Option(help="large (default) or tiny (with --quick).")] = "",
    rounds: Annotated[
        int, typer.Option(min=0, help="Starts of each way's servers; 5, or 1 with --quick.")
    ] = 0,
    requests: Annotated[
        int, typer.Option(min=0, help="Prompts of each kind a round; 3, or 1 with --quick.")
    ] = 0,
    only: Annotated[str, typer.Option(help="Ways to measure, with semicolons.")] = "",
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of the order.")] = 1,
) -> None:
    """Measures the ways in turns."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not SGLANG_PYTHON.exists():
        print("skipped: .venv-sglang is missing; make test-sglang sets it up")
        return
    document = _measure(
        model or (models.TINY if quick else models.LARGE),
        rounds or (1 if quick else ROUNDS),
        requests or (1 if quick else REQUESTS),
        _wanted(only or (LINKER if quick else "")),
        seed,
    )
    if output:
        output.write_text(json.dumps(document) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(document))
        return
    for row in document["first_token"]:
        figures = (row[each] for each in ("cold_ms", "hit_ms", "own_ms", "tokens_loaded"))
        print(row["way"], *figures, "identical" if row["identical"] else "NOT identical")


def _wanted(only: str) -> list[str]:
    """Returns the ways to measure."""
    wanted = [each.strip() for each in only.split(";")] if only else list(WAYS)
    if unknown := set(wanted) - set(WAYS):
        raise typer.BadParameter(f"{sorted(unknown)}, not among {list(WAYS)}")
    return wanted


def _measure(
    model: str, rounds: int, requests: int, wanted: list[str], seed: int
) -> dict[str, Any]:
    before = machine.load_average()
    threads = int(machine.machine_facts()["cores"])
    with tempfile.TemporaryDirectory(prefix="sglang-bench-") as path:
        folder = Path(path)
        made = models.make(model, folder / "model")
        setting = Setting(made, PROMPT_TOKENS, rounds, requests, ARGUMENTS, threads)
        samples = measure(wanted, setting, random.Random(seed), folder, _say)
    return {
        "benchmark": "sglang_servers",
        "machine": machine.machine_facts() | {"sglang": _version()},
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {
            "model": model,
            "prompt_tokens": PROMPT_TOKENS,
            "rounds": rounds,
            "requests": requests,
            "threads": threads,
            "arguments": list(ARGUMENTS),
            "figure": "medians of all requests of a kind, in ms to the first token",
        },
        "first_token": rows(samples),
    }


def _version() -> str:
    pins = PINS.read_text(encoding="utf-8").splitlines()
    return next(line.partition("==")[2] for line in pins if line.startswith("sglang=="))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
