"""Time to first token of a server that never saw a prompt, but whose neighbour did."""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support import machine
from support.vllm.server import Completion, VllmServer
from support.vllm.ways import ALONE, KVSTORE, VLLM_PYTHON, Way

# Ids above those that tokenizers reserve, in every measured model.
TOKENS = range(16, 250)
ANSWER_TOKENS = 4
# Seconds until computed pages are stored, which happens beside the next steps.
SETTLING = 1.0
TAKEN = "vllm:external_prefix_cache_hits"


@dataclass
class Samples:
    """One way's figures, one of each a round: seconds, tokens, bytes."""

    cold: list[float] = field(default_factory=list)
    hit: list[float] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    stored_bytes: list[int] = field(default_factory=list)
    loaded_bytes: list[int] = field(default_factory=list)
    # True if the second server's answers were the first's.
    identical: bool = True

    def add(self, other: "Samples") -> None:
        """Adds the figures of another pass."""
        self.cold += other.cold
        self.hit += other.hit
        self.tokens += other.tokens
        self.stored_bytes += other.stored_bytes
        self.loaded_bytes += other.loaded_bytes
        self.identical &= other.identical


@dataclass(frozen=True)
class Setting:
    """The servers' configuration, and the prompts: ``prompt_tokens`` each, ``rounds`` times."""

    model: Path
    prompt_tokens: int
    rounds: int
    arguments: tuple[str, ...]
    threads: int


def measure(
    way: Way, setting: Setting, numbers: random.Random, folder: Path, say: Callable[[str], None]
) -> tuple[Samples, list[float]]:
    """Measures one way in all rounds, and the load average at each. Its servers run alone."""
    samples, loads = Samples(), []
    count = 1 if way.name == ALONE else 2
    with ExitStack() as stack:
        servers = [
            stack.enter_context(_server(way, setting, folder / f"{way.name}-{number}.log"))
            for number in range(count)
        ]
        for server in servers:
            server.wait_healthy()
        _warm_up(servers, numbers, setting)
        for _ in range(setting.rounds):
            loads.append(machine.load_average())
            _round(way, servers, samples, numbers, setting)
        say(f"{way.name}: {setting.rounds} rounds")
    return samples, loads


def _round(
    way: Way,
    servers: list[VllmServer],
    samples: Samples,
    numbers: random.Random,
    setting: Setting,
) -> None:
    """Sends the last server a new prompt, and one that the first server computed."""
    last = servers[-1]
    samples.cold.append(_ask(last, _prompt(numbers, setting)).first_token_seconds)
    time.sleep(SETTLING)
    if way.name == ALONE:
        return
    shared = _prompt(numbers, setting)
    with _bytes(way, servers[0], "stored") as stored:
        first = _ask(servers[0], shared)
        time.sleep(SETTLING)
    before = last.counters().get(TAKEN, 0.0)
    with _bytes(way, last, "loaded") as loaded:
        hit = _ask(last, shared)
        time.sleep(SETTLING)
    samples.hit.append(hit.first_token_seconds)
    samples.identical &= hit.tokens == first.tokens
    samples.tokens.append(round(last.counters().get(TAKEN, 0.0) - before))
    if way.files is not None:
        # The server reads the files that it wrote.
        loaded = stored
    samples.stored_bytes += stored
    samples.loaded_bytes += loaded


@contextmanager
def _bytes(way: Way, server: VllmServer, what: str) -> Iterator[list[int]]:
    """Yields the bytes copied within the ``with``, as far as the way reports them."""
    found: list[int] = []

    def total() -> int:
        if way.files is not None:
            return sum(path.stat().st_size for path in way.files.rglob("*.safetensors"))
        return round(server.counters().get(f"kvstore_{what}_bytes", 0.0))

    before = total()
    yield found
    if way.files is not None or way.name == KVSTORE:
        found.append(total() - before)


def _ask(server: VllmServer, tokens: list[int]) -> Completion:
    """Sends a prompt with vLLM's own prefix cache empty."""
    server.forget()
    return server.complete(tokens, answer_tokens=ANSWER_TOKENS)


def _prompt(numbers: random.Random, setting: Setting) -> list[int]:
    return numbers.choices(TOKENS, k=setting.prompt_tokens)


def _warm_up(servers: list[VllmServer], numbers: random.Random, setting: Setting) -> None:
    """Makes servers do all one-time work, with prompts that are not measured."""
    for _ in range(2):
        prompt = _prompt(numbers, setting)
        for server in servers:
            _ask(server, prompt)
            time.sleep(SETTLING)


def _server(way: Way, setting: Setting, log: Path) -> VllmServer:
    environment = {
        "OMP_NUM_THREADS": str(setting.threads),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        **way.environment,
    }
    arguments = [*setting.arguments, *way.arguments()]
    return VllmServer(VLLM_PYTHON, setting.model, log, arguments, environment)
