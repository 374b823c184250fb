"""One case: what has to hold, and what it came to."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from engine_cases.answer import Answer

# Of an error that ended a case, in characters.
SHOWN = 6_000


@dataclass
class Case:
    """The result of one case, which is right if ``wrong`` is empty.

    ``connector`` names the one of its engines, empty without one. ``loaded`` counts tokens whose
    KV came from the store instead of from the model.
    """

    name: str
    connector: str = ""
    identical: bool | None = None
    loaded: int = 0
    seconds: float = 0.0
    note: str = ""
    wrong: list[str] = field(default_factory=list)

    def require(self, holds: bool, otherwise: str) -> None:  # noqa: FBT001  # a condition reads best first
        """Notes what is wrong unless it holds."""
        if not holds:
            self.wrong.append(otherwise)

    def compare(self, answers: Sequence[Answer], expected: Sequence[Answer]) -> None:
        """Requires all tokens of an engine without a connector, or those an aborted request had."""
        same = len(answers) == len(expected)
        for number, (answer, right) in enumerate(zip(answers, expected, strict=False)):
            wanted = right.tokens
            if answer.finish == "aborted":
                wanted = wanted[: len(answer.tokens)]
            elif answer.finish != right.finish:
                self.wrong.append(f"request {number} ended by {answer.finish}")
            if answer.tokens != wanted:
                same = False
                self.wrong.append(f"request {number} has {answer.tokens}, not {wanted}")
        self.identical = same and self.identical is not False
