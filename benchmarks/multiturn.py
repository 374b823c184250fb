"""A conversation trace against the HTTP server: times to first token, and cached tokens.

Without ``--url`` it starts a store and ``kvstore-worker serve`` of its own.
"""

import asyncio
import json
import signal
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from openai import AsyncOpenAI

from support import machine
from support.replay.trace import load
from support.traces import readable
from support.workloads.clients import Served, replay
from support.workloads.figures import percentile
from support.workloads.server import own_server
from support.workloads.trace import Turn, turns

# The part of a public trace that is in this repository.
CUT = Path(__file__).parents[1] / "tests" / "data" / "conversation_300.jsonl.gz"
REQUESTS, QUICK_REQUESTS = 300, 40
# The time limit of a prompt, in seconds.
PATIENCE = 600.0


def main(  # noqa: PLR0913 - each is an option
    url: Annotated[str, typer.Option(help="URL of a running server, such as http://.../v1.")] = "",
    model: Annotated[str, typer.Option(help="Model of the running or the own server.")] = "tiny",
    trace: Annotated[Path, typer.Option(help="File of JSON lines, plain or .gz.")] = CUT,
    requests: Annotated[int, typer.Option(min=1, help="Number of requests.")] = REQUESTS,
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens for 512 of the trace.")] = 16,
    longest: Annotated[int, typer.Option(min=1, help="Longest prompt, in tokens.")] = 2_000,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 4,
    callers: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 4,
    speed: Annotated[
        float, typer.Option(min=0, help="Speed relative to the trace; 0: a closed loop.")
    ] = 0.0,
    *,
    workers: Annotated[int, typer.Option(min=1, help="Engines of its own server.")] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one line of JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Replay at most 40 requests.")] = False,
) -> None:
    """Replays a slice of a trace in time order, and prints its clients' figures."""
    # SIGTERM acts like Ctrl-C, so that everything that was started is stopped.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    count = min(requests, QUICK_REQUESTS) if quick else requests
    with readable():
        requested = load(trace, count)
    asked = turns(requested, block_tokens, longest)
    if not asked:
        raise typer.BadParameter(f"no prompt has at most {longest} tokens: set a larger --longest")
    before = machine.load_average()
    server: AbstractContextManager[str] = (
        nullcontext(url)
        if url
        else own_server(model, workers=workers, longest=longest + output_tokens)
    )
    with server as base:
        served = asyncio.run(
            _replay(base, model, asked, output_tokens=output_tokens, callers=callers, speed=speed)
        )
    result = {
        **figures(asked, served),
        "left_out": count - len(asked),
        "block_tokens": block_tokens,
        "output_tokens": output_tokens,
        "callers": callers,
        "loop": f"open, {speed:g} times faster" if speed else "closed",
        "model": model,
        "workers": None if url else workers,
        "machine": machine.machine_facts(),
        "load_average": {"before": before, "after": machine.load_average()},
    }
    if not as_json:
        for name in ("ttft_p50_ms", "ttft_p99_ms", "cached_share", "ideal_share", "errors"):
            print(f"{name:>13} {result[name]}")
    print(json.dumps(result))
    sys.stdout.flush()


async def _replay(
    base: str, model: str, asked: list[Turn], *, output_tokens: int, callers: int, speed: float
) -> list[Served]:
    async with AsyncOpenAI(
        base_url=base, api_key="none", max_retries=0, timeout=PATIENCE
    ) as client:
        return await replay(
            client, model, asked, output_tokens=output_tokens, callers=callers, speed=speed
        )


def figures(asked: list[Turn], served: list[Served]) -> dict[str, Any]:
    """Returns the clients' figures of the answered requests."""
    pairs = [(turn, each) for turn, each in zip(asked, served, strict=True) if not each.error]
    first = [each.first_token_s * 1e3 for _, each in pairs] or [0.0]
    tokens = sum(each.prompt_tokens for _, each in pairs)
    return {
        "requests": len(asked),
        "errors": len(asked) - len(pairs),
        "ttft_p50_ms": round(percentile(first, 50), 1),
        "ttft_p99_ms": round(percentile(first, 99), 1),
        "prompt_tokens": tokens,
        "cached_share": round(sum(each.cached_tokens for _, each in pairs) / max(1, tokens), 4),
        "ideal_share": round(sum(turn.known_tokens for turn, _ in pairs) / max(1, tokens), 4),
        "late_p99_ms": round(percentile([each.late_s * 1e3 for each in served], 99), 1),
    }


if __name__ == "__main__":
    typer.run(main)
