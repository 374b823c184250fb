"""A chat is written in its model's own format, and a new turn only adds ids."""

from collections.abc import Mapping, Sequence

import pytest

from inference_worker.chat.format import Exchange, Message, TemplateFormat, chat_format
from inference_worker.model.tokenizer import ByteTokenizer

START, END = 300, 301


class MarkedTokenizer(ByteTokenizer):
    """A tokenizer of bytes with Gemma's two marks."""

    @property
    def begin_ids(self) -> list[int]:
        """Returns one id."""
        return [299]

    def special_id(self, name: str) -> int | None:  # type: ignore[override]
        """Returns the ids of the marks."""
        return {"<start_of_turn>": START, "<end_of_turn>": END}.get(name)


class TemplateTokenizer(MarkedTokenizer):
    """A tokenizer of bytes whose template writes each message as a line."""

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:  # type: ignore[override]
        """Writes each message's role and text, and then the role that speaks next."""
        lines = [f"{each['role']}={each['content']}\n" for each in messages]
        return list(("".join(lines) + "assistant=").encode())


def shown(ids: list[int]) -> str:
    """Returns ids as text, with a sign for each mark."""
    return "".join({299: "^", START: "<", END: ">"}.get(i) or chr(i) for i in ids)


@pytest.mark.parametrize(
    ("tokenizer", "first", "second", "stop_ids"),
    [
        (
            ByteTokenizer(),
            "User: Who?\nAssistant:",
            "User: Who?\nAssistant:Me\nUser: Why?\nAssistant:",
            {10},
        ),
        (
            MarkedTokenizer(),
            "^<user\nWho?>\n<model\n",
            "^<user\nWho?>\n<model\nMe>\n<user\nWhy?>\n<model\n",
            {END},
        ),
        (
            TemplateTokenizer(),
            "user=Who?\nassistant=",
            "user=Who?\nassistant=Me\nuser=Why?\nassistant=",
            set(),
        ),
    ],
)
def test_each_tokenizer_has_its_format(
    tokenizer: ByteTokenizer, first: str, second: str, stop_ids: set[int]
) -> None:
    """A template is preferred, then Gemma's marks, then plain text. A turn only adds ids."""
    form = chat_format(tokenizer, frozenset([END]))
    begin = form.prompt_ids([], "Who?")
    assert shown(begin) == first
    longer = form.prompt_ids([Exchange("Who?", list(b"Me"))], "Why?")
    assert shown(longer) == second
    assert longer[: len(begin) + 2] == [*begin, *b"Me"]
    assert form.message_ids([Message("user", "Who?")]) == begin
    messages = [("user", "Who?"), ("assistant", "Me"), ("user", "Why?")]
    assert form.message_ids([Message(*each) for each in messages]) == longer
    assert form.stop_ids == stop_ids
    assert isinstance(form, TemplateFormat) == isinstance(tokenizer, TemplateTokenizer)


def test_marks_that_a_model_was_not_taught_are_left_alone() -> None:
    """A chat is plain text if the model never ends with the mark of its tokenizer."""
    form = chat_format(MarkedTokenizer(), frozenset([1]))
    assert shown(form.prompt_ids([], "Who?")) == "^User: Who?\nAssistant:"


def test_a_line_of_several_ids_ends_nothing() -> None:
    """Plain text has no stop id if a line end takes several ids."""

    class WideTokenizer(ByteTokenizer):
        def encode(self, text: str) -> list[int]:
            return [each for one in text.encode() for each in (one // 16, one % 16)]

    assert chat_format(WideTokenizer(), frozenset()).stop_ids == frozenset()


TOLD = Message("system", "Be kind.")
WHO, ME, WHY = Message("user", "Who?"), Message("assistant", "Me"), Message("user", "Why?")


@pytest.mark.parametrize(
    ("tokenizer", "expected"),
    [
        (ByteTokenizer(), "System: Be kind.\nUser: Who?\nAssistant:"),
        (MarkedTokenizer(), "^<user\nBe kind.\n\nWho?>\n<model\n"),
        (TemplateTokenizer(), "system=Be kind.\nuser=Who?\nassistant="),
    ],
)
def test_what_the_system_says_comes_first(tokenizer: ByteTokenizer, expected: str) -> None:
    """Each turn includes the system's message, and begins with the ids of the turn before."""
    form = chat_format(tokenizer, frozenset([END]))
    begin = form.message_ids([TOLD, WHO])
    assert shown(begin) == expected
    longer = form.message_ids([TOLD, WHO, ME, WHY])
    assert longer[: len(begin) + 2] == [*begin, *b"Me"]


def test_questions_in_a_row_are_turns() -> None:
    """A question without an answer may be followed by another question."""
    form = chat_format(ByteTokenizer(), frozenset())
    found = form.message_ids([WHO, TOLD, WHY])
    expected = "User: Who?\nAssistant:\nSystem: Be kind.\nUser: Why?\nAssistant:"
    assert shown(found) == expected


@pytest.mark.parametrize("messages", [[], [TOLD], [WHO, ME], [ME, WHO], [WHO, ME, ME, WHO]])
def test_messages_without_a_place_are_refused(messages: list[Message]) -> None:
    """An answer has to follow a question, and the last message has to be a question."""
    form = chat_format(ByteTokenizer(), frozenset())
    with pytest.raises(ValueError, match="message must"):
        form.message_ids(messages)
