"""The answers of vLLM without a connector, with nothing cached."""

from collections.abc import Sequence
from dataclasses import replace

from engine_cases.answer import Answer
from engine_cases.prompts import Prompt
from rig.engine import Engine


class Reference:
    """The answers of an engine without a connector, each asked for once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[Prompt, Answer] = {}

    def answers(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """Returns what is right; a salt, a hint and an abort change nothing of it."""
        plain = [replace(each, salt=None, abort_after=None, hint=None) for each in prompts]
        unknown = [prompt for prompt in dict.fromkeys(plain) if prompt not in self._known]
        if unknown:
            self._known |= zip(unknown, self._engine.ask(unknown), strict=True)
        return [self._known[prompt] for prompt in plain]
