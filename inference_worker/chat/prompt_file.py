"""The prompts of ``kvstore-worker warm``: JSON lines."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import takewhile
from typing import Any, Final, NamedTuple

from inference_worker.chat.format import Message
from inference_worker.model.tokenizer import Tokenizer
from kvstore_client.values.packed_tokens import pack_tokens

Render = Callable[[Sequence[Message]], list[int]]
"""Returns the ids of a chat up to where its next answer begins."""

KINDS: Final = ("prompt", "messages", "prompt_ids")
SHOWN: Final = '{"prompt": "..."}, {"messages": [...]} or {"prompt_ids": [...]}'
# Very different beginnings of a user's message: ids that all of these share do not depend on it.
BEGINNINGS: Final = ("A", "b", "7", "?", " x", "\n", "É", "\u4e2d", "<")
NAME_DIGITS: Final = 12


class PromptFileError(ValueError):
    """A line of the file is not a valid prompt."""

    def __init__(self, line: int, why: str) -> None:
        """Keeps the line's number and the reason."""
        super().__init__(f"line {line}: {why}")
        self.line = line


class WarmPrompt(NamedTuple):
    """A prompt as token ids, and the name of its pin."""

    line: int
    name: str
    ids: list[int]


def read_prompts(
    lines: Iterable[str], tokenizer: Tokenizer, render: Render, pin_prefix: str
) -> list[WarmPrompt]:
    """Reads one prompt from each line that is not blank.

    A pin's name is ``pin_prefix`` and the line's ``name``, or a digest of its ids. Raises
    ``PromptFileError``, also for a name that two different prompts have.
    """
    found: list[WarmPrompt] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        told = _fields(number, line)
        try:
            ids = _ids(told, tokenizer, render)
            name = told.get("name") or sha256(pack_tokens(ids)).hexdigest()[:NAME_DIGITS]
        except (KeyError, TypeError, ValueError) as error:
            raise PromptFileError(number, f"{type(error).__name__}: {error}") from error
        prompt = WarmPrompt(number, f"{pin_prefix}{name}", ids)
        for other in found:
            if other.name == prompt.name and other.ids != prompt.ids:
                raise PromptFileError(number, f"line {other.line} has the name {name!r} too")
        found.append(prompt)
    return found


def chat_prefix(messages: Sequence[Message], render: Render) -> list[int]:
    """Returns the ids of a chat that its messages determine.

    A chat that ends with a user's message is rendered completely. Any other chat ends where the
    next user's words begin: at the ids that all possible words share.
    """
    if messages and messages[-1].role == "user":
        return render(messages)
    chats = [render([*messages, Message("user", each)]) for each in BEGINNINGS]
    same = takewhile(lambda ids: len(set(ids)) == 1, zip(*chats, strict=False))
    return [ids[0] for ids in same]


def _fields(number: int, line: str) -> dict[str, Any]:
    """Returns a line's fields; raises ``PromptFileError``."""
    try:
        told = json.loads(line)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise PromptFileError(number, f"it is no JSON object: {SHOWN}")
    unknown = told.keys() - {*KINDS, "name"}
    if unknown or len(told.keys() & set(KINDS)) != 1:
        raise PromptFileError(number, f"it has one of {SHOWN}, and may have a name")
    if not isinstance(told.get("name", ""), str):
        raise PromptFileError(number, "its name is no text")
    return told


def _ids(told: Mapping[str, Any], tokenizer: Tokenizer, render: Render) -> list[int]:
    if "prompt" in told:
        if not isinstance(told["prompt"], str):
            raise TypeError("prompt is a text")
        return [*tokenizer.begin_ids, *tokenizer.encode(told["prompt"])]
    if "messages" in told:
        return chat_prefix([_message(each) for each in told["messages"]], render)
    ids = told["prompt_ids"]
    if not isinstance(ids, list) or not all(type(each) is int for each in ids):
        raise TypeError("prompt_ids is a list of integers")
    return ids


def _message(told: Mapping[str, Any]) -> Message:
    role, content = told["role"], told["content"]
    if not isinstance(role, str) or not isinstance(content, str):
        raise TypeError("a message's role and content are texts")
    return Message(role, content)
