"""A trace through SGLang's router in front of several servers: hits by how it routes.

Each policy gets fresh stores. Needs .venv-routers (`make test-routers`). The last line is one JSON
object. docs/how-to-routing.md says how to read it.
"""

import asyncio
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple

import typer

from inference_worker.demo.valkey_server import running_valkey
from kvstore.assembly.remote_setup import KEY_BYTES
from support import machine
from support.replay.trace import load
from support.routing.clients import Answered, Asked, ask_all, asked_of, returning
from support.routing.servers import serving
from support.routing.sglang_router import PYTHON, routing
from support.table_console import keyed_table, table_console
from support.traces import readable
from support.workloads.figures import percentile
from support.workloads.trace import Turn, turns

# A part of a public trace that is in this repository.
CUT = Path(__file__).parents[1] / "tests" / "support" / "traces" / "conversation_cut.jsonl"
QUICK = 40
MODEL = "tiny"
ENGINE_MEMORY = "512mb"
ROUTING_KEY = "X-SMG-Routing-Key"


class Policy(StrEnum):
    """The way in which the router chooses a server."""

    ROUND_ROBIN = "round_robin"
    HEAD = "manual"
    """By the prompt's head, whose name the client sends in a header; a new one by load."""
    CACHE_AWARE = "cache_aware"
    """By the prompts that each server had so far; by load if that is uneven."""


class Way(NamedTuple):
    """A policy, and whether the stores share pages by a remote tier."""

    policy: Policy
    moves: bool = False

    @property
    def name(self) -> str:
        """Its name in the result."""
        return f"{self.policy.value}{' + remote' if self.moves else ''}"


WAYS: Final = (
    *(Way(each) for each in Policy),
    *(Way(each, moves=True) for each in (Policy.ROUND_ROBIN, Policy.CACHE_AWARE)),
)


class Plan(NamedTuple):
    """The servers and the requests of each way."""

    prompts: list[Asked]
    stores: int
    servers: int
    longest: int
    tier1: str
    output_tokens: int
    callers: int


def main(  # noqa: PLR0913 - each is an option
    trace: Annotated[Path, typer.Option(help="File of JSON lines, plain or .gz.")] = CUT,
    requests: Annotated[int, typer.Option(min=1, help="Number of requests.")] = 240,
    block_tokens: Annotated[int, typer.Option(min=1, help="Tokens for 512 of the trace.")] = 32,
    longest: Annotated[int, typer.Option(min=1, help="Longest prompt, in tokens.")] = 1_600,
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of each answer.")] = 4,
    callers: Annotated[int, typer.Option(min=1, help="Concurrent requests.")] = 4,
    stores: Annotated[int, typer.Option(min=1, help="Stores: hosts, in production.")] = 2,
    servers: Annotated[int, typer.Option(min=1, help="Servers on each store.")] = 2,
    tier1: Annotated[str, typer.Option(help="Size of each store's tier 1.")] = "256MiB",
    *,
    every: Annotated[
        bool, typer.Option("--every", help="Also conversations of one request.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print only one line of JSON.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="At most 40 requests.")] = False,
) -> None:
    """Sends a slice of a trace through the router by each policy; compares hits and answers."""
    if not PYTHON.exists():
        print("skipped: .venv-routers is missing; make test-routers sets it up")
        return
    with readable():
        found = load(trace)
    chosen = found if every else returning(found)
    asked = turns(chosen, block_tokens, longest - output_tokens - 1)
    asked = asked[: min(requests, QUICK) if quick else requests]
    if not asked:
        raise typer.BadParameter(f"no prompt has at most {longest} tokens: set a larger --longest")
    prompts = asked_of(asked, 2 * block_tokens)
    plan = Plan(prompts, stores, servers, longest, tier1, output_tokens, callers)
    before = machine.load_average()
    measured = {way.name: measure(plan, way) for way in WAYS}
    first = next(iter(measured.values())).answers
    ways = {
        name: {**each.figures, "other_texts": other_texts(each.answers, first)}
        for name, each in measured.items()
    }
    result = {
        "ways": ways,
        "ideal_share": ideal_share(asked),
        "requests": len(asked),
        "every": every,
        "stores": stores,
        "servers": stores * servers,
        "block_tokens": block_tokens,
        "tier1": tier1,
        "callers": callers,
        "trace": trace.name,
        "machine": machine.machine_facts(),
        "load_average": {"before": before, "after": machine.load_average()},
    }
    if not as_json:
        show(ways)
    print(json.dumps(result))
    sys.stdout.flush()
    if any(each["errors"] or each["other_texts"] for each in ways.values()):
        raise typer.Exit(1)


class Measured(NamedTuple):
    """The answers of one way, and its figures."""

    answers: list[Answered]
    figures: dict[str, Any]


def measure(plan: Plan, way: Way) -> Measured:
    """Runs stores, servers and a router of their own, and sends all prompts once."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kv-")))
        shared = stack.enter_context(shared_engine(folder)) if way.moves else nothing_shared
        running = stack.enter_context(
            serving(
                plan.stores,
                plan.servers,
                model=MODEL,
                longest=plan.longest,
                store_options=lambda number: ("--tier1-bytes", plan.tier1, *shared(number)),
            )
        )
        urls = [each.url for each in running]
        router = stack.enter_context(routing(urls, way.policy.value, folder / "router.log"))
        begun = time.perf_counter()
        answers = asyncio.run(
            ask_all(
                router.url,
                MODEL,
                plan.prompts,
                output_tokens=plan.output_tokens,
                callers=plan.callers,
                headers_of=lambda prompt: headers_of(way.policy, prompt),
            )
        )
        seconds = time.perf_counter() - begun
        loads = [each.metric("kvstore_worker_prompt_tokens_total") for each in running]
    return Measured(answers, figures(answers, seconds, loads))


def nothing_shared(number: int) -> tuple[str, ...]:
    """Returns the options of a store that shares nothing with others."""
    del number
    return ()


@contextmanager
def shared_engine(folder: Path) -> Iterator[Callable[[int], tuple[str, ...]]]:
    """Runs a Valkey; yields the options of stores that share pages in it, by their numbers."""
    key = folder / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(KEY_BYTES))
    with (
        (folder / "valkey.log").open("wb") as log,
        running_valkey(folder / "valkey", log=log, memory=ENGINE_MEMORY) as engine,
    ):

        def options(number: int) -> tuple[str, ...]:
            state = folder / f"state-{number}"
            state.mkdir(mode=0o700)
            return (
                *("--remote-url", engine.url, "--remote-key-file", str(key)),
                *("--remote-trust-uids", "--remote-write", "through"),
                *("--remote-state-dir", str(state)),
            )

        yield options


def headers_of(policy: Policy, prompt: Asked) -> dict[str, str]:
    """Returns the headers of a prompt for a policy."""
    return {ROUTING_KEY: prompt.head} if policy is Policy.HEAD else {}


def figures(answers: list[Answered], seconds: float, loads: list[float]) -> dict[str, Any]:
    """Returns the figures of one way.

    ``imbalance`` is the largest share of the prompts' tokens that one server got, over an equal
    share: 1 is even.
    """
    good = [each for each in answers if not each.error]
    tokens = sum(each.prompt_tokens for each in good)
    cached = sum(each.cached_tokens for each in good)
    remote = sum(each.remote_tokens for each in good)
    first = [each.first_token_s * 1e3 for each in good] or [0.0]
    return {
        "cached_share": round(cached / max(1, tokens), 4),
        "remote_share": round(remote / max(1, tokens), 4),
        "computed_tokens": tokens - cached,
        "ttft_p50_ms": round(percentile(first, 50), 1),
        "ttft_p99_ms": round(percentile(first, 99), 1),
        "requests_per_s": round(len(good) / seconds, 2),
        "imbalance": round(max(loads) * len(loads) / max(1.0, sum(loads)), 2),
        "errors": len(answers) - len(good),
    }


def other_texts(answers: list[Answered], first: list[Answered]) -> int:
    """Returns how many answers have another text than the first way gave."""
    return sum(one.text != other.text for one, other in zip(answers, first, strict=True))


def ideal_share(asked: list[Turn]) -> float:
    """Returns the share of tokens that one endless cache for all servers would have."""
    tokens = sum(len(each.ids) for each in asked)
    return round(sum(each.known_tokens for each in asked) / max(1, tokens), 4)


def show(ways: dict[str, dict[str, Any]]) -> None:
    """Prints the figures as a table."""
    table = keyed_table("Hits by the way in which the router chooses a server", "way")
    columns = list(next(iter(ways.values())))
    for each in columns:
        table.add_column(each, justify="right")
    for name, row in ways.items():
        table.add_row(name, *(str(row[each]) for each in columns))
    table_console().print(table)


if __name__ == "__main__":
    typer.run(main)
