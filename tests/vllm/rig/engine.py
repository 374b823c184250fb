"""An engine of vLLM in a process of its own, as cases see it."""

import multiprocessing
import os
from collections.abc import Iterable
from multiprocessing import forkserver
from pathlib import Path
from typing import Self

from engine_cases.answer import Answer
from engine_cases.prompts import Prompt
from rig.answer import Call, Counts
from rig.options import EngineOptions

START_SECONDS = 240.0
ANSWER_SECONDS = 240.0
STOP_SECONDS = 20.0
LOG_TAIL = 5_000
# Imported once, and then there in every engine's process, which is forked from that one.
IMPORTED = ["vllm.v1.engine.llm_engine", "vllm.v1.worker.cpu_worker", "kvstore_vllm"]
IMPORTED += ["vllm.model_executor.models.qwen3", "vllm.model_executor.models.llama"]


class EngineGoneError(Exception):
    """An engine's process ended or does not answer; the message has the end of its log."""


def prepare(cache: Path, log: Path) -> None:
    """Sets what processes of engines inherit, and import vLLM in the one they are forked from.

    Before the first of them, once. What that one prints goes to ``log``.
    """
    os.environ |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "VLLM_CACHE_ROOT": str(cache),
        # Two ranks share what cores there are.
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
    }
    multiprocessing.set_forkserver_preload(IMPORTED)
    ours = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        forkserver.ensure_running()
    finally:
        os.dup2(ours, 2)
        os.close(ours)


class Engine:
    """One engine, from its start until the ``with`` ends. One thread uses it."""

    def __init__(self, name: str, options: EngineOptions, folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._options = options
        self._asked = 0

    def __enter__(self) -> Self:
        # In the forked process alone vLLM is there already.
        context = multiprocessing.get_context("forkserver")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._options, self.log), name=self.name
        )
        self._process.start()
        theirs.close()
        self._receive(START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._process.join(STOP_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def ask(self, prompts: Iterable[Prompt]) -> list[Answer]:
        """Runs requests all at once, and returns how each ended."""
        self.begin(prompts)
        return self.finish()

    def ask_each(self, prompts: Iterable[Prompt]) -> list[Answer]:
        """Runs requests one after the other."""
        return [self.ask([prompt])[0] for prompt in prompts]

    def begin(self, prompts: Iterable[Prompt]) -> None:
        """Starts requests; :meth:`finish` waits for them."""
        self._connection.send(list(prompts))

    def finish(self) -> list[Answer]:
        """Waits for the requests that :meth:`begin` started."""
        answers: list[Answer] = self._receive(ANSWER_SECONDS)
        return answers

    @property
    def finished(self) -> bool:
        """Returns whether the work, or the process itself, has ended."""
        return self._connection.poll() or not self._process.is_alive()

    def counts(self) -> Counts:
        """Returns what the engine and its connector counted since the start."""
        self._connection.send("counts")
        counts: Counts = self._receive(ANSWER_SECONDS)
        return counts

    def call(self, method: str, *arguments: object, **named: object) -> None:
        """Calls a method of vLLM's engine, such as ``sleep``; what it raises ends the engine."""
        self._connection.send(Call(method, arguments, named))
        self._receive(ANSWER_SECONDS)

    def forget(self) -> None:
        """Empty vLLM's own prefix cache."""
        self._connection.send("reset")
        if not self._receive(ANSWER_SECONDS):
            raise EngineGoneError(f"{self.name} would not empty its prefix cache")

    def _receive(self, timeout: float):  # type: ignore[no-untyped-def]  # noqa: ANN202  # what was asked for
        try:
            if self._connection.poll(timeout):
                return self._connection.recv()
            reason = f"said nothing for {timeout:.0f} s"
        except (EOFError, OSError):
            reason = "ended"
        log = self.log.read_text(errors="replace") if self.log.exists() else ""
        raise EngineGoneError(f"the engine {self.name} {reason}:\n{log[-LOG_TAIL:]}")


def _serve(*arguments: object) -> None:
    """Imports vLLM in the engine's process, never in the one that asks."""
    from rig.engine_process import serve  # noqa: PLC0415

    serve(*arguments)  # type: ignore[arg-type]
