"""A server of SGLang as cases see it: requests in threads, and sums of what was cached."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from uuid import uuid4

from engine_cases.answer import Answer
from engine_cases.prompts import Prompt
from rig.options import ServerOptions
from support.sglang.server import Generate, Generation, SglangServer

# Requests that are sent at the same time.
AT_ONCE = 16


@dataclass(frozen=True)
class Cached:
    """Prompt tokens of requests that were not computed: in the server's own tree, and loaded."""

    own: int = 0
    loaded: int = 0

    def since(self, before: "Cached") -> "Cached":
        """Returns the difference to an earlier count."""
        return Cached(self.own - before.own, self.loaded - before.loaded)


class Engine:
    """One server, from its start until the ``with`` ends. One thread uses it.

    ``cached`` has the sums since the start. ``failures`` has requests that SGLang answered with
    an error, each with its status.
    """

    def __init__(self, name: str, options: ServerOptions, folder: Path) -> None:
        log, arguments = folder / f"{name}.log", options.command_arguments()
        self._server = SglangServer(options.model, log, arguments, options.environment())
        self._threads = ThreadPoolExecutor(AT_ONCE)
        self._asked: list[Future[Generation]] = []
        self.cached = Cached()
        self.failures: list[Generation] = []

    def __enter__(self) -> Self:
        self._server.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.__exit__(*error)
        self._threads.shutdown(cancel_futures=True)

    @property
    def log(self) -> str:
        """The log of its processes."""
        return self._server.said

    def wait_healthy(self) -> None:
        """Waits until it serves. Raises ``RuntimeError`` with its log if it does not start."""
        self._server.wait_healthy()

    def ask(self, prompts: Iterable[Prompt]) -> list[Answer]:
        """Sends requests at the same time, and returns how each ended."""
        self.begin(prompts)
        return self.finish()

    def ask_each(self, prompts: Iterable[Prompt]) -> list[Answer]:
        """Sends requests one after the other."""
        return [self.ask([prompt])[0] for prompt in prompts]

    def begin(self, prompts: Iterable[Prompt]) -> None:
        """Sends requests; :meth:`finish` waits for them."""
        for prompt in prompts:
            self._asked.append(self._threads.submit(self._generate, prompt))

    def finish(self) -> list[Answer]:
        """Waits for the requests that :meth:`begin` sent."""
        asked, self._asked = self._asked, []
        found = [each.result() for each in asked]
        self._count(found)
        return [Answer(each.tokens, each.finish) for each in found]

    def flush(self) -> None:
        """Empties its own tree."""
        self._server.flush()

    def change_weights(self, folder: Path) -> None:
        """Loads other weights while it runs."""
        self._server.change_weights(folder)

    def counters(self) -> dict[str, float]:
        """Returns the counters of its metrics."""
        return self._server.counters()

    def _generate(self, prompt: Prompt) -> Generation:
        asked = Generate(
            tokens=prompt.tokens,
            answer_tokens=prompt.answer_tokens,
            key=prompt.salt,
            adapter=prompt.adapter,
            rid=uuid4().hex,
            streamed=prompt.abort_after is not None,
        )
        if prompt.abort_after == 0:
            self._threads.submit(self._server.abort, asked.rid)
        return self._server.generate(asked, abort_after=prompt.abort_after)

    def _count(self, found: Sequence[Generation]) -> None:
        own, loaded = self.cached.own, self.cached.loaded
        for each in found:
            own, loaded = own + each.own_tokens, loaded + each.loaded_tokens
            if each.failed:
                self.failures.append(each)
        self.cached = Cached(own, loaded)
