"""The HTTP server's bounds."""

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
    """What bounds a request; ``api_keys`` None lets everybody in.

    A body of more than ``max_body_bytes`` is refused before it is read whole, and one that is
    slower than ``body_seconds`` too. Of one request at most ``max_choices`` answers are computed:
    its prompts times ``n``.
    """

    api_keys: ApiKeys | None = None
    max_body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    max_choices: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What of a model is needed beside its engine; ``created`` is in seconds since 1970."""

    name: str
    tokenizer: Tokenizer
    chat_format: ChatFormat
    end_ids: frozenset[int]
    longest: int
    created: int = field(default_factory=lambda: int(time.time()))


def served_model(
    name: str, tokenizer: Tokenizer, end_ids: frozenset[int], longest: int
) -> ServedModel:
    """Serves a model under a name, in the chat format that its tokenizer has."""
    return ServedModel(
        name=name,
        tokenizer=tokenizer,
        chat_format=chat_format(tokenizer, end_ids),
        end_ids=end_ids,
        longest=longest,
    )
