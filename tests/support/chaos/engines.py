"""Engines with a model, beside the light workers: what they answer is known."""

import random
import signal
from collections.abc import Sequence
from pathlib import Path
from threading import Event, Thread
from typing import IO

from chaos.tally import Tally
from inference_worker.demo.line_process import LineProcess
from inference_worker.errors import ProcessEndedError
from kvstore_client.fault_points import VARIABLE

MODEL = "tiny"
# As many bytes as a light worker's page: all share one pool.
PAGE_TOKENS = 2
LONGEST = 96
SYSTEM = b"You answer in few words, and you never make anything up. "
QUESTIONS = (
    b"What is a page?",
    b"What is a pin, and who has one?",
    b"What is a lease?",
    b"Who may write?",
)
# Between two requests, in seconds: a model takes what the light workers would need.
PAUSE = 0.25
# Where an engine is killed, at which visit.
POINTS = tuple(
    f"{step}.{when}"
    for step in ("match", "acquire", "reserve", "insert", "release")
    for when in ("before", "after")
)
VISITS = 20, 60
CLOSE_SECONDS = 30.0


class Engines:
    """Threads with an engine each, from the beginning until closed.

    The known answers are those of the first engine without a store.
    """

    def __init__(
        self,
        number: int,
        runtime_dir: Path,
        log: IO[bytes],
        tally: Tally,
        *,
        seed: int,
        suffix: str = "",
    ) -> None:
        self._runtime_dir = runtime_dir
        self._log = log
        self._tally = tally
        self._closing = Event()
        self._known: list[list[int]] = []
        self._all_known = Event()
        self._answered: dict[str, int] = {}
        self._processes: dict[str, LineProcess] = {}
        self._threads = [
            Thread(
                target=self._serve,
                args=(f"engine-{each}{suffix}", random.Random(seed + each)),
                name=f"engine-{each}{suffix}",
                daemon=True,
            )
            for each in range(number)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def answered(self) -> bool:
        """True if every engine has answered something with the store."""
        return self._answered.keys() >= {thread.name for thread in self._threads}

    def close(self) -> None:
        """Ends the engines."""
        self._closing.set()
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)
            if thread.is_alive():
                self._tally.wrong("hung_workers", thread.name)
        self.kill()

    def kill(self) -> None:
        """Ends the engines at once; nothing where they ended."""
        self._closing.set()
        while any(thread.is_alive() for thread in self._threads):
            for process in list(self._processes.values()):
                process.kill()
            for thread in self._threads:
                thread.join(PAUSE)

    def _serve(self, name: str, chosen: random.Random) -> None:
        while not self._closing.is_set():
            point = chosen.choice(POINTS)
            with self._process(name, f"{point}:{chosen.randint(*VISITS)}=kill") as process:
                self._processes[name] = process
                try:
                    self._live(process, chosen)
                except ProcessEndedError as error:
                    if self._closing.is_set():
                        return
                    if error.status != -signal.SIGKILL:
                        self._tally.wrong("crashed_workers", str(error))
                    self._tally.add("killed_workers")
                    self._tally.add("killed_engines")
                    self._tally.struck(f"engine.{point}=kill")

    def _live(self, process: LineProcess, chosen: random.Random) -> None:
        process.wait_ready()
        if process.name == self._threads[0].name and not self._known:
            self._known = [self._ask(process, each, use_store=False) for each in prompts()]
            self._all_known.set()
        while not self._all_known.wait(PAUSE):
            if self._closing.is_set():
                return
        while not self._closing.wait(PAUSE):
            number = chosen.randrange(len(self._known))
            answer = self._ask(process, prompts()[number])
            self._tally.add("answers")
            self._answered[process.name] = number
            if answer != self._known[number]:
                what = f"{process.name}: {answer} and not {self._known[number]}"
                self._tally.wrong("wrong_answers", what)

    def _ask(
        self, process: LineProcess, prompt: Sequence[int], *, use_store: bool = True
    ) -> list[int]:
        answer = process.ask(
            op="generate", prompt_ids=list(prompt), max_tokens=8, use_store=use_store
        )
        self._tally.add("answer_tokens_reused", answer["matched_tokens"] + answer["copied_tokens"])
        if answer["store_failure"] is not None:
            self._tally.add("answers_without_a_store")
        output: list[int] = answer["output_ids"]
        return output

    def _process(self, name: str, faults: str) -> LineProcess:
        arguments = ["run", "--model", MODEL, "--runtime-dir", str(self._runtime_dir)]
        arguments += ["--name", name, "--page-tokens", str(PAGE_TOKENS)]
        arguments += ["--longest", str(LONGEST), "--threads", "1"]
        environment = {VARIABLE: faults}
        return LineProcess(
            name, "inference_worker", arguments, log=self._log, environment=environment
        )


def prompts() -> list[list[int]]:
    """Returns the prompts: bytes are the model's tokens."""
    return [list(SYSTEM + question) for question in QUESTIONS]
