"""The model that the HTTP server speaks for."""

import time
from dataclasses import dataclass, field

from inference_worker.chat.format import ChatFormat, chat_format
from inference_worker.model.tokenizer import Tokenizer


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
