"""The demo's requests: questions on a text, and a chat that changes its worker."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from inference_worker.model.tokenizer import Tokenizer

DOCUMENT_TOKENS: Final = 2_000
QUESTIONS: Final = 4
WARM_UP_TOKENS: Final = 300
WORKERS: Final = ("A", "B")
AGAIN: Final = "again"


@dataclass(frozen=True)
class DemoTurn:
    """One request: its worker, its kind, its text, and the ids after the ids before."""

    worker: str
    kind: str
    text: str
    ids: list[int]


class DemoScript:
    """The demo's text and turns, as ids of one tokenizer.

    A tokenizer of bytes takes the first ``DOCUMENT_TOKENS`` of the text, another one all of it.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Reads and encodes the text that is shipped with the package."""
        data = files("inference_worker") / "data"
        text = (data / "demo_text.txt").read_text(encoding="utf-8")
        self._asked = json.loads((data / "demo_questions.json").read_text(encoding="utf-8"))
        self._tokenizer = tokenizer
        ids = tokenizer.encode(text)
        limit = DOCUMENT_TOKENS if len(ids) > 2 * DOCUMENT_TOKENS else len(ids)
        self.document = [*tokenizer.begin_ids, *ids[:limit]]

    def warm_up(self) -> list[int]:
        """Returns a prompt from the middle of the text, which no other prompt begins with."""
        middle = len(self.document) // 2
        return self.document[middle : middle + WARM_UP_TOKENS]

    def questions(self) -> Iterator[DemoTurn]:
        """Yields questions on the document, to the workers in turn."""
        for number, text in enumerate(self._asked["questions"][:QUESTIONS]):
            yield self._turn(number, "question", text)

    def again(self) -> DemoTurn:
        """Returns the first question once more, to the worker that was not asked it."""
        return self._turn(1, AGAIN, self._asked["questions"][0])

    def chat(self) -> Iterator[DemoTurn]:
        """Yields a chat's turns, each to the other worker than the one before."""
        for number, text in enumerate(self._asked["chat"]):
            yield self._turn(number, "chat", text)

    def last_words(self) -> DemoTurn:
        """Returns the question during which worker B is killed, and which A then answers."""
        return self._turn(1, "killed", self._asked["questions"][QUESTIONS])

    def _turn(self, number: int, kind: str, text: str) -> DemoTurn:
        worker = WORKERS[number % len(WORKERS)]
        return DemoTurn(worker, kind, text.strip(), self._tokenizer.encode(text))
