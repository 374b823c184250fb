"""Time to first token of a server that never saw a prompt, but whose neighbour did."""

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support.vllm.processor_use import OtherWork, ServerUse
from support.vllm.server import Completion, VllmServer
from support.vllm.ways import ALONE, VLLM_PYTHON, WAYS, Way

# Ids above those that tokenizers reserve, in every measured model.
TOKENS = range(16, 250)
ANSWER_TOKENS = 4
# Seconds until computed pages are stored, which happens beside the next steps, and until vLLM's
# EngineCore sleeps: it spins for one second after its last read.
SETTLING = 1.5
TAKEN = "vllm:external_prefix_cache_hits"
# A request beside which other work took more cores is dropped.
MOST_OTHER_CORES = 0.15
# Tries for each request that is to be kept.
TRIES = 2
# Seconds of each look at other work.
LOOK_SECONDS = 0.5
# glibc would return memory after each request and fault it in again with the next one, for
# some processes and not for others.
ALLOCATOR = {
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(256 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
}


@dataclass(frozen=True)
class Request:
    """One request: seconds to its first token, its server's use until then, and other work."""

    seconds: float
    use: ServerUse
    other_cores: float

    @property
    def clean(self) -> bool:
        """True if other work left the machine to the benchmark."""
        return self.other_cores <= MOST_OTHER_CORES


@dataclass
class Samples:
    """One way's requests, in their order, and what they copied: tokens and bytes."""

    cold: list[Request] = field(default_factory=list)
    # The cold requests to a server without a connector that were sent just before or after.
    beside: list[Request] = field(default_factory=list)
    hit: list[Request] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    stored_bytes: list[int] = field(default_factory=list)
    loaded_bytes: list[int] = field(default_factory=list)
    # True if the second server's answers were the first's.
    identical: bool = True


@dataclass(frozen=True)
class Setting:
    """The servers' configuration, and the prompts of ``prompt_tokens`` each.

    In each of ``rounds`` rounds, every way's servers start once and ``requests`` clean pairs
    of requests are kept, if other work allows it. A request waits for other work to pause,
    ``patience`` seconds at most.
    """

    model: Path
    prompt_tokens: int
    rounds: int
    requests: int
    patience: float
    arguments: tuple[str, ...]
    threads: int


def measure(
    names: Sequence[str],
    setting: Setting,
    numbers: random.Random,
    folder: Path,
    say: Callable[[str], None],
) -> dict[str, Samples]:
    """Measures ways in all rounds, in another order in each. Only one way's servers run.

    Beside them runs a server without a connector, for cold requests in turns with theirs: a
    machine's speed changes within minutes by more than what a miss may cost.
    """
    samples = {name: Samples() for name in names}
    for number in range(setting.rounds):
        order = numbers.sample(names, len(names))
        say(f"round {number + 1} of {setting.rounds}: {', '.join(order)}")
        for name in order:
            with WAYS[name].start() as way, WAYS[ALONE].start() as alone:
                _Turn(way, alone, setting, samples[name], numbers, folder, say).run()
    return samples


@dataclass
class _Turn:
    """One start of a way's two servers, and of one without a connector, with their requests."""

    way: Way
    alone: Way
    setting: Setting
    samples: Samples
    numbers: random.Random
    folder: Path
    say: Callable[[str], None]

    def run(self) -> None:
        """Measures pairs of requests until enough are kept."""
        with ExitStack() as stack:
            first, last, beside = servers = [
                stack.enter_context(_server(way, self.setting, self.folder / f"{name}.log"))
                for way, name in (
                    (self.way, f"{self.way.name}-first"),
                    (self.way, f"{self.way.name}-last"),
                    (self.alone, "beside"),
                )
            ]
            for server in servers:
                server.wait_healthy()
            _warm_up(servers, self.numbers, self.setting)
            kept = 0
            for _ in range(TRIES * self.setting.requests):
                cold = self._cold(last, beside)
                # A server without a connector has no hits.
                kept += cold and (self.way.transfer is None or self._hit(first, last))
                if kept == self.setting.requests:
                    return

    def _cold(self, last: VllmServer, beside: VllmServer) -> bool:
        """Sends the last server, and the one beside it, a new prompt each, in any order.

        Returns whether both requests are kept.
        """
        samples, found = self.samples, dict[VllmServer, Request]()
        for server in self.numbers.sample([last, beside], 2):
            _, found[server] = _measured(server, _prompt(self.numbers, self.setting), self.setting)
        samples.cold.append(found[last])
        samples.beside.append(found[beside])
        self.say(_line(self.way, "cold", found[last]))
        self.say(_line(self.alone, "beside it", found[beside]))
        return found[last].clean and found[beside].clean

    def _hit(self, first: VllmServer, last: VllmServer) -> bool:
        """Sends the last server a prompt that the first computed. Returns whether it is kept."""
        way, samples = self.way, self.samples
        shared = _prompt(self.numbers, self.setting)
        with _bytes(way, first, "stored") as stored:
            expected = _ask(first, shared)
            time.sleep(SETTLING)
        before = last.counters().get(TAKEN, 0.0)
        with _bytes(way, last, "loaded") as loaded:
            answer, hit = _measured(last, shared, self.setting)
        samples.hit.append(hit)
        self.say(_line(way, "hit", hit))
        samples.identical &= answer.tokens == expected.tokens
        samples.tokens.append(round(last.counters().get(TAKEN, 0.0) - before))
        if way.files is not None:
            # The server reads the files that it wrote.
            loaded = stored
        samples.stored_bytes += stored
        samples.loaded_bytes += loaded
        return hit.clean


def _measured(
    server: VllmServer, tokens: list[int], setting: Setting
) -> tuple[Completion, Request]:
    """Sends a prompt when other work pauses, and waits until its pages are stored."""
    _await_quiet(setting.patience)
    server.forget()
    used: list[ServerUse] = []

    def look() -> None:
        used.append(ServerUse.of(server.session))

    others = OtherWork()
    look()
    answer = server.complete(tokens, answer_tokens=ANSWER_TOKENS, at_first_token=look)
    time.sleep(SETTLING)
    return answer, Request(answer.first_token_seconds, used[1].since(used[0]), others.cores())


def _await_quiet(patience: float) -> None:
    """Waits until other work takes few cores, for ``patience`` seconds at most."""
    until = time.monotonic() + patience
    while time.monotonic() < until:
        others = OtherWork()
        time.sleep(LOOK_SECONDS)
        if others.cores() <= MOST_OTHER_CORES:
            return


def _line(way: Way, kind: str, request: Request) -> str:
    use = request.use
    return (
        f"{way.name}, {kind}: {request.seconds * 1e3:,.0f} ms;"
        f" EngineCore {use.engine_core_seconds:.2f} s, {use.engine_core_faults:,} page faults;"
        f" worker {use.worker_faults:,} page faults; others {request.other_cores:.2f} cores"
        f"{'' if request.clean else ', dropped'}"
    )


@contextmanager
def _bytes(way: Way, server: VllmServer, what: str) -> Iterator[list[int]]:
    """Yields the bytes copied within the ``with``, as far as the way reports them."""
    found: list[int] = []

    def total() -> int:
        if way.files is not None:
            return sum(path.stat().st_size for path in way.files.rglob("*.safetensors"))
        name = (way.byte_counter or "").format(what)
        return round(server.counters().get(name, 0.0))

    before = total()
    yield found
    if way.files is not None or way.byte_counter is not None:
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
        **ALLOCATOR,
        **way.environment,
    }
    arguments = [*setting.arguments, *way.arguments()]
    return VllmServer(VLLM_PYTHON, setting.model, log, arguments, environment)
