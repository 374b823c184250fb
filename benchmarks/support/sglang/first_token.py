"""Time to first token of a server that never saw a prompt, but whose neighbour did."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from support.sglang.server import Generate, Generation, SglangServer
from support.sglang.ways import WAYS, Way
from support.vllm.processor_use import OtherWork

TOKENS: Final = range(16, 250)
ANSWER_TOKENS = 4
# Seconds until computed pages are stored, which happens beside the next steps.
SETTLING = 1.5
COLD, HIT, OWN = "cold", "hit", "own"
KINDS: Final = (COLD, HIT, OWN)


@dataclass(frozen=True)
class Request:
    """One request: the seconds to its first token, its cached tokens, and other work's cores."""

    seconds: float
    own_tokens: int
    loaded_tokens: int
    other_cores: float


@dataclass
class Samples:
    """One way's requests by kind, in their order.

    Cold: nobody saw the prompt. Hit: the neighbour computed it. Own: this server did.
    """

    by_kind: dict[str, list[Request]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    # True if the second server's answers were the first's.
    identical: bool = True


@dataclass(frozen=True)
class Setting:
    """The servers' model and arguments, and the prompts of ``prompt_tokens`` each.

    In each of ``rounds`` rounds, every way's two servers start once and get ``requests`` prompts
    of each kind.
    """

    model: Path
    prompt_tokens: int
    rounds: int
    requests: int
    arguments: tuple[str, ...]
    threads: int


def measure(
    names: Sequence[str],
    setting: Setting,
    numbers: random.Random,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Samples]:
    """Measures ways in all rounds, in another order in each. Only one way's servers run."""
    samples = {name: Samples() for name in names}
    for number in range(setting.rounds):
        order = numbers.sample(names, len(names))
        say(f"round {number + 1} of {setting.rounds}: {', '.join(order)}")
        for name in order:
            with WAYS[name]() as way:
                _turn(way, setting, samples[name], numbers, folder, say)
    return samples


def rows(samples: dict[str, Samples]) -> list[dict[str, Any]]:
    """Returns a row of figures for each way: medians in ms and in tokens, and every request."""
    return [_row(name, found) for name, found in samples.items()]


def _turn(  # a round's whole state
    way: Way,
    setting: Setting,
    samples: Samples,
    numbers: random.Random,
    folder: Path,
    say: Callable[[str], None],
) -> None:
    """Starts a way's servers, and sends the last one prompts of every kind."""
    environment = {"OMP_NUM_THREADS": str(setting.threads), **way.environment}
    with ExitStack() as stack:
        first, last = servers = [
            stack.enter_context(
                SglangServer(
                    setting.model,
                    folder / f"{way.name}-{name}.log",
                    [*setting.arguments, *way.arguments],
                    environment,
                )
            )
            for name in ("first", "last")
        ]
        for server in servers:
            server.wait_healthy()
        # One-time work, also of a load.
        warm = _prompt(numbers, setting)
        for server in servers:
            _ask(server, warm)
            time.sleep(SETTLING)
        for _ in range(setting.requests):
            _measured(last, _prompt(numbers, setting), COLD, samples, way, say)
            if not way.shares:
                continue
            shared = _prompt(numbers, setting)
            expected = _ask(first, shared)
            time.sleep(SETTLING)
            for kind in (HIT, OWN):
                found = _measured(last, shared, kind, samples, way, say)
                samples.identical &= found.tokens == expected.tokens


def _measured(  # a request and where it counts
    server: SglangServer,
    prompt: list[int],
    kind: str,
    samples: Samples,
    way: Way,
    say: Callable[[str], None],
) -> Generation:
    others = OtherWork()
    found = _ask(server, prompt)
    request = Request(
        found.first_token_seconds, found.own_tokens, found.loaded_tokens, others.cores()
    )
    time.sleep(SETTLING)
    samples.by_kind[kind].append(request)
    say(
        f"{way.name}, {kind}: {request.seconds * 1e3:,.0f} ms, {request.own_tokens} tokens in its"
        f" tree, {request.loaded_tokens} loaded; others {request.other_cores:.2f} cores"
    )
    return found


def _ask(server: SglangServer, prompt: list[int]) -> Generation:
    found = server.generate(Generate(tokens=prompt, answer_tokens=ANSWER_TOKENS, streamed=True))
    if found.failed:
        raise RuntimeError(f"the server answered {found.status}: {found.said}")
    return found


def _prompt(numbers: random.Random, setting: Setting) -> list[int]:
    return numbers.choices(TOKENS, k=setting.prompt_tokens)


def _row(name: str, samples: Samples) -> dict[str, Any]:
    row: dict[str, Any] = {"way": name, "identical": samples.identical}
    for kind, requests in samples.by_kind.items():
        row[f"{kind}_ms"] = _middle([each.seconds * 1e3 for each in requests])
        row[f"{kind}_raw"] = [vars(each) for each in requests]
    row["tokens_loaded"] = _middle([each.loaded_tokens for each in samples.by_kind[HIT]])
    row["tokens_own"] = _middle([each.own_tokens for each in samples.by_kind[OWN]])
    row["times_sooner"] = (
        round(row["cold_ms"] / row["hit_ms"], 2) if row["hit_ms"] and row["cold_ms"] else None
    )
    return row


def _middle(values: Sequence[float]) -> float | None:
    return round(median(values), 1) if values else None
