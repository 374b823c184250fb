"""Tokenizers: the interface that the engine's users need, and its implementations."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerFast

BYTE_VALUES: Final = 256


class ByteTokenizer:
    """UTF-8 bytes as token ids 0 to 255; a model needs a vocabulary of at least that many."""

    vocab_size: Final = BYTE_VALUES

    @property
    def begin_ids(self) -> list[int]:
        """Empty: a sequence starts with its text."""
        return []

    def encode(self, text: str) -> list[int]:
        """Returns the text's UTF-8 bytes."""
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of the ids below 256, with replacement characters for invalid UTF-8."""
        return bytes(i for i in ids if i < BYTE_VALUES).decode(errors="replace")

    def special_id(self, name: str) -> None:
        """Returns None: every id is a byte of text."""
        del name

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> None:
        """Returns None: there is no template."""
        del messages


# The file name of the tokenizers library.
TOKENIZER_FILE: Final = "tokenizer.json"


class Tokenizer(Protocol):
    """Converts text to token ids and back, without side effects; any thread may call it."""

    @property
    def begin_ids(self) -> list[int]:
        """The ids that a sequence starts with before any text; may be empty."""
        ...

    def encode(self, text: str) -> list[int]:
        """Returns the text's ids only, without ``begin_ids``, so that pieces can be joined."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text of any ids, without special ones."""
        ...

    def special_id(self, name: str) -> int | None:
        """Returns the id of one token by its name, such as ``<start_of_turn>``, or None."""
        ...

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """Returns the ids of a chat up to where its next answer begins; None without a template.

        A message has ``role`` (system, user or assistant) and ``content``. Raises ``ValueError``
        for messages that the template refuses.
        """
        ...


class FolderTokenizer:
    """A model folder's own tokenizer, as transformers loads it."""

    def __init__(self, folder: Path) -> None:
        """Loads it, in seconds for a large vocabulary; raises the errors of transformers."""
        self._tokenizer: Any = _loader(folder).from_pretrained(folder)
        first = self._tokenizer.encode("", add_special_tokens=True)[:1]
        self._begin_ids = [int(i) for i in first if i == self._tokenizer.bos_token_id]

    @property
    def begin_ids(self) -> list[int]:
        """The ids that the tokenizer itself puts first, such as beginning-of-sequence."""
        return list(self._begin_ids)

    def encode(self, text: str) -> list[int]:
        """Returns the text's ids only."""
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)]

    def decode(self, ids: Sequence[int]) -> str:
        """Returns the text, without special tokens."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def special_id(self, name: str) -> int | None:
        """Returns the id of a token's name, or None.

        The tokenizer gives an unknown name the id of its unknown token, so the way back is checked.
        """
        found = self._tokenizer.convert_tokens_to_ids(name)
        known = found is not None and self._tokenizer.convert_ids_to_tokens(found) == name
        return int(found) if known else None

    def render_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int] | None:
        """Applies the tokenizer's own template."""
        if not self._tokenizer.chat_template:
            return None
        try:
            ids = self._tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=False
            )
        except TemplateError as error:
            raise ValueError(f"the chat template: {error}") from error
        return [int(i) for i in ids]


def _loader(folder: Path) -> Any:  # noqa: ANN401 - a class of transformers, which has no types
    """Returns the class that reads a folder: a ``tokenizer.json`` needs no torch."""
    if (folder / TOKENIZER_FILE).exists():
        return PreTrainedTokenizerFast
    from transformers import AutoTokenizer  # noqa: PLC0415 - imports torch, where it is there

    return AutoTokenizer


def load_tokenizer(folder: Path) -> Tokenizer:
    """Loads a folder's tokenizer; without one, tokens are bytes."""
    names = (TOKENIZER_FILE, "tokenizer.model", "tokenizer_config.json", "vocab.json")
    if any((folder / name).exists() for name in names):
        return FolderTokenizer(folder)
    return ByteTokenizer()
