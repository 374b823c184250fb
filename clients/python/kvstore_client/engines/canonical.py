"""Values of a configuration as JSON, equal in every process."""

import enum
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any, Final

# Fields of a Hugging Face configuration that say its origin and the version that wrote it.
NOT_OF_THE_MODEL = frozenset(
    {"_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "auto_map"}
)
LENGTH_BYTES: Final = 8
# The package that had it first: other bytes would separate engines from their own pages.
MARK: Final = b"kvstore_vllm salt 1"


class UnidentifiableModel(ValueError):
    """A factor of the engine's pages is unknown; the message says what to set."""


def canonical_json(value: object, name: str) -> bytes:
    """Returns a value as JSON with sorted keys.

    Raises ``UnidentifiableModel`` for a value without JSON, such as a function. ``name`` is
    its place in the configuration, for the message.
    """
    return json.dumps(_plain(value, name), sort_keys=True).encode()


def _plain(value: Any, name: str) -> Any:  # noqa: ANN401, PLR0911  # one line for each type
    if value is None or isinstance(value, str | bool | int | float):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, enum.Enum):
        return [type(value).__qualname__, value.name]
    if isinstance(value, Mapping):
        return {str(key): _plain(each, f"{name}.{key}") for key, each in value.items()}
    if isinstance(value, AbstractSet):
        return sorted(json.dumps(_plain(each, name), sort_keys=True) for each in value)
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray):
        return [_plain(each, name) for each in value]
    if type(value).__module__ == "torch" and type(value).__name__ in ("dtype", "device"):
        return str(value)
    is_class = isinstance(value, type)
    if not is_class and callable(getattr(value, "to_dict", None)):
        return _model_facts(_plain(value.to_dict(), name))
    if not is_class and is_dataclass(value):
        own = {each.name: getattr(value, each.name, None) for each in fields(value)}
        return {key: _plain(each, f"{name}.{key}") for key, each in own.items()}
    raise UnidentifiableModel(
        f"{name} is a {type(value).__name__}, which cannot be told from another: set it to "
        "values, or leave it out"
    )


def _model_facts(value: Any) -> Any:  # noqa: ANN401  # JSON
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if key not in NOT_OF_THE_MODEL}
        return {key: _model_facts(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [_model_facts(each) for each in value]
    return value


def framed(*parts: bytes) -> bytes:
    """Joins parts so that different parts never give the same bytes."""
    return b"".join(len(part).to_bytes(LENGTH_BYTES, "little") + part for part in parts)


def text_bytes(text: str) -> bytes:
    """Returns a text's bytes, also if it holds half of a surrogate pair."""
    return text.encode("utf-8", "surrogatepass")


def mixed_salt(**parts: bytes) -> bytes:
    """Returns one salt for all parts, by their kinds; empty parts do not count.

    It is ``b""``, no salt, if all are empty; else 32 bytes.
    """
    named = [(name.encode(), part) for name, part in sorted(parts.items()) if part]
    if not named:
        return b""
    return sha256(framed(MARK, *(each for pair in named for each in pair))).digest()
