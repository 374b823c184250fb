"""The limits of the HTTP server, and the model that it serves."""

import time
from dataclasses import dataclass, field
from typing import Final

from inference_worker.chat.format import ChatFormat, chat_format
from inference_worker.http.api_keys import ApiKeys
from inference_worker.model.tokenizer import Tokenizer

# Seconds that running requests get after SIGTERM.
GRACE_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """The limits of a request; without ``api_keys`` everybody has access.

    A body of more than ``max_body_bytes`` is refused before it is read completely, and so is one
    that takes longer than ``body_seconds``. One request has at most ``max_choices`` answers: its
    prompts times ``n``. Parameters that nobody knows are refused if ``strict_parameters``, and
    ignored otherwise.
    """

    api_keys: ApiKeys | None = None
    max_body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    max_choices: int = 16
    strict_parameters: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model without its engine; ``created`` is in seconds since 1970."""

    name: str
    tokenizer: Tokenizer
    chat_format: ChatFormat
    end_ids: frozenset[int]
    longest: int
    created: int = field(default_factory=lambda: int(time.time()))


def served_model(
    name: str, tokenizer: Tokenizer, end_ids: frozenset[int], longest: int
) -> ServedModel:
    """Returns a model under a name, with its tokenizer's chat format."""
    return ServedModel(
        name=name,
        tokenizer=tokenizer,
        chat_format=chat_format(tokenizer, end_ids),
        end_ids=end_ids,
        longest=longest,
    )
