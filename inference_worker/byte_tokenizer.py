"""A tokenizer for models without one: a token is a byte."""

from collections.abc import Mapping, Sequence
from typing import Final

BYTE_VALUES: Final = 256


class ByteTokenizer:
    """UTF-8 bytes as token ids 0 to 255; a model needs a vocabulary of at least that many."""

    vocab_size: Final = BYTE_VALUES

    @property
    def begin_ids(self) -> list[int]:
        """None: a sequence starts with its text."""
        return []

    def encode(self, text: str) -> list[int]:
        """Give the text's UTF-8 bytes."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Give the text of the ids below 256; what is no UTF-8 becomes a replacement character."""
        return bytes(i for i in ids if i < BYTE_VALUES).decode(errors="replace")

    def special_id(self, name: str) -> None:
        """None: every id is a byte of text."""
        del name

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> None:
        """None: there is no template."""
        del messages
