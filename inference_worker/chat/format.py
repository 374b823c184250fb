"""Chat formats: convert a conversation to the ids that a model continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference_worker.model.tokenizer import Tokenizer


class Exchange(NamedTuple):
    """A question and the ids of its answer, without the end id."""

    question: str
    answer_ids: list[int]


class Message(NamedTuple):
    """One message: ``role`` is system, user or assistant."""

    role: str
    content: str


class ChatFormat(Protocol):
    """Converts conversations to ids."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an answer, besides the model's own."""
        ...

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Returns the ids of a chat, up to where the next answer begins."""
        ...

    def message_ids(self, messages: Sequence[Message]) -> list[int]:
        """Returns the ids of a chat whose answers are text, up to where the next answer begins.

        The ids of a chat that grows begin with its earlier ids. Raises ``ValueError`` for messages
        that the format cannot express.
        """
        ...


class TemplateFormat:
    """The template of a tokenizer."""

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes a tokenizer that has a template."""
        self._tokenizer = tokenizer

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Renders the whole chat again, with answers as text, as the template requires."""
        messages: list[Message] = []
        for each in past:
            messages.append(Message("user", each.question))
            messages.append(Message("assistant", self._tokenizer.decode(each.answer_ids)))
        return self.message_ids([*messages, Message("user", question)])

    def message_ids(self, messages: Sequence[Message]) -> list[int]:
        """Renders the whole chat; an error of the template is a ``ValueError``."""
        ids = self._tokenizer.render_chat([each._asdict() for each in messages])
        assert ids is not None  # it has a template
        return ids


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """Turns between fixed ids. An answer's own ids are kept, so that all of them are reused.

    A system message is a line of its own after ``before_system``. If that is None, it begins the
    next question.
    """

    tokenizer: Tokenizer
    before_question: list[int]
    after_question: list[int]
    after_answer: list[int]
    stop_ids: frozenset[int]
    before_system: list[int] | None = None

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Joins the turns."""
        ids = list(self.tokenizer.begin_ids)
        for each in past:
            ids += self._asked(each.question) + each.answer_ids + self.after_answer
        return ids + self._asked(question)

    def message_ids(self, messages: Sequence[Message]) -> list[int]:
        """Joins the turns; the last one must be a question."""
        if not messages or messages[-1].role != "user":
            raise ValueError("the last message must be the user's")
        ids = list(self.tokenizer.begin_ids)
        told = ""
        # Whether the ids end at the beginning of an answer.
        asked = False
        for role, content in messages:
            if asked and role != "assistant":
                ids += self.after_answer
                asked = False
            if role == "user":
                ids += self._asked(told + content)
                told, asked = "", True
            elif role == "assistant":
                if not asked:
                    raise ValueError("an assistant's message must follow a user's")
                ids += [*self.tokenizer.encode(content), *self.after_answer]
                asked = False
            elif self.before_system is None:
                told += f"{content}\n\n"
            else:
                line = self.tokenizer.encode(content)
                ids += [*self.before_system, *line, *self.after_answer]
        return ids

    def _asked(self, question: str) -> list[int]:
        return [*self.before_question, *self.tokenizer.encode(question), *self.after_question]


def chat_format(tokenizer: Tokenizer, end_ids: frozenset[int]) -> ChatFormat:
    """Chooses a tokenizer's own template, else Gemma's turns, else plain text.

    Gemma's turns are for a model that ends its output with their mark. A model that only has the
    mark's id in its vocabulary repeats the question. In plain text an answer is one line.
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
        before_system=tokenizer.encode("System: "),
    )
