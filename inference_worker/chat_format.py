"""How a chat becomes the ids that a model continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference_worker.tokenizer import Tokenizer


class Exchange(NamedTuple):
    """A question and the ids of its answer, without what ended it."""

    question: str
    answer_ids: list[int]


class ChatFormat(Protocol):
    """A way to write chats."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an answer, besides the model's own."""
        ...

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Give all of a chat, up to where the next answer begins."""
        ...


class TemplateFormat:
    """The template that came with a tokenizer."""

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Take a tokenizer that has one."""
        self._tokenizer = tokenizer

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Render the whole chat anew: answers go in as text, as the template wants them."""
        messages: list[dict[str, str]] = []
        for each in past:
            messages.append({"role": "user", "content": each.question})
            answer = self._tokenizer.decode(each.answer_ids)
            messages.append({"role": "assistant", "content": answer})
        ids = self._tokenizer.render_chat([*messages, {"role": "user", "content": question}])
        assert ids is not None  # it has a template
        return ids


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """Turns between fixed ids: an answer's own ids go in as they are, so that all is reused."""

    tokenizer: Tokenizer
    before_question: list[int]
    after_question: list[int]
    after_answer: list[int]
    stop_ids: frozenset[int]

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Put one turn behind the other."""
        ids = list(self.tokenizer.begin_ids)
        for each in past:
            ids += self._asked(each.question) + each.answer_ids + self.after_answer
        return ids + self._asked(question)

    def _asked(self, question: str) -> list[int]:
        return [*self.before_question, *self.tokenizer.encode(question), *self.after_question]


def chat_format(tokenizer: Tokenizer, end_ids: frozenset[int]) -> ChatFormat:
    """Choose a tokenizer's own template, else Gemma's turns, else plain text.

    Gemma's turns are for a model that was taught them, which ends what it says with their mark: one
    that only knows the mark's id repeats the question. In plain text an answer is one line.
    """
    if tokenizer.render_chat([{"role": "user", "content": "?"}]) is not None:
        return TemplateFormat(tokenizer)
    start, end = (tokenizer.special_id(name) for name in ("<start_of_turn>", "<end_of_turn>"))
    line = tokenizer.encode("\n")
    if start is not None and end is not None and end in end_ids:
        return TurnFormat(
            tokenizer,
            before_question=[start, *tokenizer.encode("user\n")],
            after_question=[end, *line, start, *tokenizer.encode("model\n")],
            after_answer=[end, *line],
            stop_ids=frozenset([end]),
        )
    return TurnFormat(
        tokenizer,
        before_question=tokenizer.encode("User: "),
        after_question=tokenizer.encode("\nAssistant:"),
        after_answer=line,
        stop_ids=frozenset(line[:1]) if len(line) == 1 else frozenset(),
    )
