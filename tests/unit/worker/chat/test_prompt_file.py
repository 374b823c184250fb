"""The content of a file of prompts, and what is refused."""

from collections.abc import Sequence

import pytest

from inference_worker.chat.format import Message
from inference_worker.chat.prompt_file import PromptFileError, chat_prefix, read_prompts
from inference_worker.model.tokenizer import ByteTokenizer

TOKENIZER = ByteTokenizer()
SYSTEM = Message("system", "Be brief.")


def render(messages: Sequence[Message]) -> list[int]:
    """Writes a chat as some templates do. The system's message is within the first user's turn."""
    text = "".join(
        f"{each.content}\n\n" if each.role == "system" else f"U:{each.content}."
        for each in messages
    )
    return TOKENIZER.encode(f"{text}A:")


def merging(messages: Sequence[Message]) -> list[int]:
    """Renders a chat with consecutive line ends as one token, as in many vocabularies."""
    text = TOKENIZER.decode(render(messages)).replace("U:", "")
    return TOKENIZER.encode(text.replace("\n\n\n", "3").replace("\n\n", "2"))


def test_each_kind_of_line_is_read() -> None:
    """A line is blank, text, a chat or ids, and its name is given or made of the ids."""
    lines = [
        '{"prompt": "Hello", "name": "greeting"}',
        "",
        '{"messages": [{"role": "system", "content": "Be brief."}]}',
        '{"prompt_ids": [1, 2, 3]}',
    ]
    found = read_prompts(lines, TOKENIZER, render, "warm/")
    assert [each.line for each in found] == [1, 3, 4]
    assert [each.ids for each in found] == [
        TOKENIZER.encode("Hello"),
        TOKENIZER.encode("Be brief.\n\nU:"),
        [1, 2, 3],
    ]
    assert found[0].name == "warm/greeting"
    again = read_prompts(lines[3:], TOKENIZER, render, "warm/")
    assert again[0].name == found[2].name != found[1].name


def test_a_chat_s_prefix_is_what_no_user_can_change() -> None:
    """A prefix ends before tokens that may merge with the user's first words, if unknown."""
    assert chat_prefix([SYSTEM], merging) == TOKENIZER.encode("Be brief.")
    whole = [SYSTEM, Message("user", "Why?")]
    assert chat_prefix(whole, merging) == merging(whole)
    for words in ("Why?", "\nWhy?", "é"):
        asked = render([SYSTEM, Message("user", words)])
        prefix = chat_prefix([SYSTEM], render)
        assert asked[: len(prefix)] == prefix


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("You are a helpful assistant.", "no JSON object"),
        ('"text"', "no JSON object"),
        ("{}", "has one of"),
        ('{"prompt": "x", "prompt_ids": [1]}', "has one of"),
        ('{"prompt": "x", "max_tokens": 3}', "has one of"),
        ('{"prompt": "x", "name": 3}', "name is no text"),
        ('{"prompt_ids": ["x"]}', "a list of integers"),
        ('{"prompt_ids": [true]}', "a list of integers"),
        ('{"prompt_ids": [-1]}', "line 2"),
        ('{"prompt": 3}', "prompt is a text"),
        ('{"messages": [{"content": "x"}]}', "role"),
        ('{"messages": [{"role": "user", "content": 3}]}', "are texts"),
    ],
)
def test_what_is_no_prompt_is_named_by_its_line(line: str, why: str) -> None:
    """A file with a wrong line is refused as a whole, and the error names the line."""
    with pytest.raises(PromptFileError, match="line 2") as raised:
        read_prompts(['{"prompt": "x"}', line], TOKENIZER, render, "")
    assert why in str(raised.value)


def test_a_name_is_of_one_prompt() -> None:
    """A name may repeat with the same prompt, but not with another one."""
    lines = ['{"prompt": "x", "name": "a"}', '{"prompt": "x", "name": "a"}']
    assert len(read_prompts(lines, TOKENIZER, render, "")) == 2
    with pytest.raises(PromptFileError, match="line 1 has the name 'a' too"):
        read_prompts([lines[0], '{"prompt": "y", "name": "a"}'], TOKENIZER, render, "")
