"""How a chat becomes the ids that a model continues."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from inference_worker.model.tokenizer import Tokenizer


class Exchange(NamedTuple):
    """A question and the ids of its answer, without what ended it."""

    question: str
    answer_ids: list[int]


class Message(NamedTuple):
    """What somebody said: ``role`` is system, user or assistant."""

    role: str
    content: str


class ChatFormat(Protocol):
    """A way to write chats."""

    @property
    def stop_ids(self) -> frozenset[int]:
        """The ids that end an answer, besides the model's own."""
        ...

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Gives all of a chat, up to where the next answer begins."""
        ...

    def message_ids(self, messages: Sequence[Message]) -> list[int]:
        """Gives all of a chat whose answers are text, up to where the next answer begins.

        The ids of a chat that grows begin with those that it had. Raises ``ValueError`` for
        messages that the format has no place for.
        """
        ...


class TemplateFormat:
    """The template that came with a tokenizer."""

    stop_ids: frozenset[int] = frozenset()

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Takes a tokenizer that has one."""
        self._tokenizer = tokenizer

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Renders the whole chat anew: answers go in as text, as the template wants them."""
        messages: list[Message] = []
        for each in past:
            messages.append(Message("user", each.question))
            messages.append(Message("assistant", self._tokenizer.decode(each.answer_ids)))
        return self.message_ids([*messages, Message("user", question)])

    def message_ids(self, messages: Sequence[Message]) -> list[int]:
        """Renders the whole chat; what the template says against it is a ``ValueError``."""
        ids = self._tokenizer.render_chat([each._asdict() for each in messages])
        assert ids is not None  # it has a template
        return ids


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """Turns between fixed ids: an answer's own ids go in as they are, so that all is reused.

    What the system says is a line of its own where ``before_system`` begins it, else the
    beginning of the question after it.
    """

    tokenizer: Tokenizer
    before_question: list[int]
    after_question: list[int]
    after_answer: list[int]
    stop_ids: frozenset[int]
    before_system: list[int] | None = None

    def prompt_ids(self, past: Sequence[Exchange], question: str) -> list[int]:
        """Puts one turn behind the other."""
        ids = list(self.tokenizer.begin_ids)
        for each in past:
            ids += self._asked(each.question) + each.answer_ids + self.after_answer
        return ids + self._asked(question)

    def message_ids(self, messages: Sequence[Message]) -> list[int]:
        """Puts one turn behind the other; the last has to be a question."""
        if not messages or messages[-1].role != "user":
            raise ValueError("the last message has to be the user's")
        ids = list(self.tokenizer.begin_ids)
        told = ""
        # Whether the ids end where an answer begins.
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
                    raise ValueError("an assistant's message has to follow a user's")
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
        before_system=tokenizer.encode("System: "),
    )
