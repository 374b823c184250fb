"""Two servers of SGLang whose pools evict all the time, on a store that is killed and restarted.

Every answer is compared with that of a server that caches nothing. Needs .venv-sglang
(`make test-sglang`).
"""

import json
import signal
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from support import machine
from support.sglang import models
from support.sglang.server import SGLANG_PYTHON
from support.sglang.stress import Stress, prompts, references


def main(
    *,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON value.")] = False,
    output: Annotated[Path | None, typer.Option(help="Write the JSON value to this file.")] = None,
    quick: Annotated[bool, typer.Option(help="Send 60 requests, and kill the store once.")] = False,
    requests: Annotated[
        int, typer.Option(min=0, help="Requests, half to each server; 500, or 60 with --quick.")
    ] = 0,
    kills: Annotated[
        int, typer.Option(min=-1, help="Kills of the store; 5, or 1 with --quick.")
    ] = -1,
    pool_tokens: Annotated[int, typer.Option(help="Tokens of each server's own memory.")] = 2_560,
    seed: Annotated[int, typer.Option(help="Seed of the prompts and of the order.")] = 3,
    keep: Annotated[Path | None, typer.Option(help="A new folder for the servers' logs.")] = None,
) -> None:
    """Sends the requests, and ends with status 1 if an answer is wrong."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not SGLANG_PYTHON.exists():
        print("skipped: .venv-sglang is missing; make test-sglang sets it up")
        return
    requests = requests or (60 if quick else 500)
    kills = kills if kills >= 0 else 1 if quick else 5
    before = machine.load_average()
    with tempfile.TemporaryDirectory(prefix="sglang-stress-") as path:
        folder = keep or Path(path)
        folder.mkdir(exist_ok=True)
        model = models.make(models.TINY, Path(path) / "model")
        asked = prompts(requests // 2, seed)
        stress = Stress(asked, references(model, asked, folder), kills)
        stress.run(model, pool_tokens, seed, folder)
    report = stress.report
    document = {
        "benchmark": "sglang_stress",
        "machine": machine.machine_facts(),
        "load_average": {"before": before, "after": machine.load_average()},
        "method": {"requests": requests, "kills": kills, "pool_tokens": pool_tokens, "seed": seed},
        "prompt_tokens": 2 * sum(map(len, asked)),
        **asdict(report),
    }
    if output:
        output.write_text(json.dumps(document) + "\n", encoding="utf-8")
    if as_json:
        print(json.dumps(document))
    else:
        own, loaded = sum(report.own_tokens.values()), sum(report.loaded_tokens.values())
        print(
            f"{report.requests} requests, {len(report.wrong)} answers wrong, "
            f"{len(report.failed)} failed, {report.kills} kills, {report.seconds:.0f} s; "
            f"tokens in own trees {own:,}, loaded {loaded:,}"
        )
        for each in report.failed:
            print(f"failed: {each}")
    if report.wrong:
        sys.exit(1)


if __name__ == "__main__":
    typer.run(main)
