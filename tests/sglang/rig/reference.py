"""The answers of SGLang without a store, with nothing cached."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from engine_cases.answer import Answer
from engine_cases.prompts import Prompt
from rig.engine import Engine
from rig.options import ServerOptions

# Enough for all requests that run at once, so that none is computed in two parts.
POOL_TOKENS = 65_536


class Reference:
    """The answers of a server with ``--disable-radix-cache``, each asked for once.

    The server runs only while answers are asked for: two more may run beside the cases.
    """

    def __init__(self, options: ServerOptions, folder: Path) -> None:
        self._options = replace(options, runtime_dir=None, pool_tokens=POOL_TOKENS)
        self._folder = folder
        self._known: dict[Prompt, Answer] = {}
        self._engine: Engine | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Keeps the server for all answers in the ``with``."""
        name = f"reference-{self._options.model.name}-{self._options.ranks}"
        with Engine(name, self._options, self._folder) as engine:
            engine.wait_healthy()
            self._engine = engine
            try:
                yield
            finally:
                self._engine = None

    def answers(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Returns the right answers; a salt and an abort do not change them.

        Starts the server for prompts that it was not asked before, unless it runs.
        """
        plain = [replace(each, salt=None, abort_after=None) for each in prompts]
        unknown = [prompt for prompt in dict.fromkeys(plain) if prompt not in self._known]
        if unknown and self._engine is None:
            with self.running():
                return self.answers(prompts)
        if unknown and self._engine is not None:
            self._known |= zip(unknown, self._engine.ask(unknown), strict=True)
        return [self._known[prompt] for prompt in plain]
