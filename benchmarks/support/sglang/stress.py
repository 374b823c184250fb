"""Requests to two servers that evict all the time, while their store is killed and restarted."""

import random
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from kvstore_client.testing import RunningStore, running_store
from support.sglang.server import Generate, Generation, SglangServer
from support.sglang.store_flags import import_path, linker_arguments

VOCABULARY: Final = range(2, 250)
# Prompts begin with a part of one of these, and go on with some of these branches. All roots
# together are larger than a server's own memory.
ROOTS, ROOT_TOKENS, ROOT_PARTS = 12, 400, (100, 250, 400)
BRANCHES, BRANCH_PARTS, MOST_BRANCHES = 6, (33, 80, 150), 2
MOST_TAIL = 19
ANSWER_TOKENS = 6
AT_ONCE = 6
SERVERS: Final = ("first", "second")
STORE: Final = ("--tier1-bytes", "64MiB", "--extent-bytes", "16MiB")
ARGUMENTS: Final = (
    *("--dtype", "float32", "--page-size", "16", "--random-seed", "0"),
    *("--chunked-prefill-size", "1024"),
)


@dataclass
class Report:
    """The outcome. ``failed`` has each failed request: its server, its status, its words."""

    requests: int = 0
    wrong: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    own_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 0))
    loaded_tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SERVERS, 0))
    # Tokens loaded between kills: the first is before any kill.
    loaded_by_life: list[int] = field(default_factory=lambda: [0])
    kills: int = 0
    seconds: float = 0.0


def prompts(count: int, seed: int) -> list[list[int]]:
    """Returns prompts that share beginnings of many lengths."""
    numbers = random.Random(seed)
    roots = [numbers.choices(VOCABULARY, k=ROOT_TOKENS) for _ in range(ROOTS)]

    def branch() -> list[int]:
        tokens = random.Random(numbers.randrange(BRANCHES)).choices(VOCABULARY, k=BRANCH_PARTS[-1])
        return tokens[: numbers.choice(BRANCH_PARTS)]

    def prompt() -> list[int]:
        ids = list(numbers.choice(roots)[: numbers.choice(ROOT_PARTS)])
        for _ in range(numbers.randrange(MOST_BRANCHES + 1)):
            ids += branch()
        return ids + numbers.choices(VOCABULARY, k=numbers.randrange(1, MOST_TAIL + 1))

    return [prompt() for _ in range(count)]


def references(model: Path, asked: Sequence[Sequence[int]], folder: Path) -> list[Generation]:
    """Returns the answers of a server without a store, with nothing cached."""
    arguments = [*ARGUMENTS, "--max-total-tokens", "16384", "--disable-radix-cache"]
    with SglangServer(model, folder / "reference.log", arguments, import_path()) as server:
        server.wait_healthy()
        with ThreadPoolExecutor(AT_ONCE) as threads:
            return list(threads.map(lambda tokens: _ask(server, tokens), asked))


class Stress:
    """One run. Threads send requests, and one kills the store after each share of them."""

    def __init__(
        self, asked: Sequence[Sequence[int]], right: Sequence[Generation], kills: int
    ) -> None:
        self._asked = asked
        self._right = right
        self._kills = kills
        self._ended = threading.Condition()
        self._over = False
        self.report = Report()

    def run(self, model: Path, pool_tokens: int, seed: int, folder: Path) -> None:
        """Sends each prompt to both servers, in any order."""
        with ExitStack() as stack:
            store = stack.enter_context(running_store(*STORE))
            flags = linker_arguments({"runtime_dir": str(store.runtime_dir)})
            arguments = [*ARGUMENTS, "--max-total-tokens", str(pool_tokens), *flags]
            servers = {
                name: stack.enter_context(
                    SglangServer(model, folder / f"{name}.log", arguments, import_path())
                )
                for name in SERVERS
            }
            for server in servers.values():
                server.wait_healthy()
            jobs = [(name, number) for number in range(len(self._asked)) for name in SERVERS]
            random.Random(seed).shuffle(jobs)
            began = time.perf_counter()
            killer = threading.Thread(target=self._kill, args=(store, len(jobs)))
            killer.start()
            try:
                with ThreadPoolExecutor(AT_ONCE) as threads:
                    list(threads.map(lambda job: self._send(servers, *job), jobs))
            finally:
                with self._ended:
                    self._over = True
                    self._ended.notify_all()
                killer.join()
            self.report.seconds = time.perf_counter() - began

    def _send(self, servers: Mapping[str, SglangServer], name: str, number: int) -> None:
        found = _ask(servers[name], self._asked[number])
        report = self.report
        with self._ended:
            report.requests += 1
            report.own_tokens[name] += found.own_tokens
            report.loaded_tokens[name] += found.loaded_tokens
            report.loaded_by_life[-1] += found.loaded_tokens
            named = {"server": name, "prompt": number}
            if found.failed:
                report.failed.append({**named, "status": found.status, "said": found.said})
            elif found.tokens != self._right[number].tokens:
                report.wrong.append({**named, "tokens": found.tokens})
            self._ended.notify_all()

    def _kill(self, store: RunningStore, requests: int) -> None:
        """Kills the store in the middle of requests, and starts it again at once.

        Waits after each restart until a server loads from the store again, for as many requests
        as half of a life has.
        """
        share = requests // (self._kills + 1)
        for number in range(1, self._kills + 1):
            due = share * number
            with self._ended:
                self._ended.wait_for(partial(self._reached, due, due + share // 2))
                if self._over:
                    return
            store.restart()
            with self._ended:
                self.report.kills += 1
                self.report.loaded_by_life.append(0)

    def _reached(self, requests: int, latest: int) -> bool:
        sent, has_loaded = self.report.requests, self.report.loaded_by_life[-1] > 0
        return self._over or sent >= latest or (sent >= requests and has_loaded)


def _ask(server: SglangServer, tokens: Sequence[int]) -> Generation:
    return server.generate(Generate(tokens=tokens, answer_tokens=ANSWER_TOKENS))
