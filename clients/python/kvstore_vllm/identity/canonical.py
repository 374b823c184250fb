"""Values of a configuration as JSON, the same in each process."""

import enum
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from hashlib import sha256
from typing import Any, Final

# Of a Hugging Face configuration: where it came from, and by which version it was written.
NOT_OF_THE_MODEL = frozenset(
    {"_name_or_path", "name_or_path", "_commit_hash", "transformers_version", "auto_map"}
)
LENGTH_BYTES: Final = 8
MARK: Final = b"kvstore_vllm salt 1"


class UnidentifiableModel(ValueError):
    """What the engine's pages depend on cannot be told; the message says what to set."""


def canonical_json(value: object, name: str) -> bytes:
    """Returns a value as JSON with sorted keys.

    Raises ``UnidentifiableModel`` for what has no value, such as a function: ``name`` says
    where it stands.
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
    """Joins parts so that no other parts come to the same bytes."""
    return b"".join(len(part).to_bytes(LENGTH_BYTES, "little") + part for part in parts)


def text_bytes(text: str) -> bytes:
    """Returns a text's bytes, whatever a user put into it: a half of a character pair too."""
    return text.encode("utf-8", "surrogatepass")


def mixed_salt(**parts: bytes) -> bytes:
    """Returns one salt for all of them, by what each is; empty parts count for nothing.

    ``b""``, which is no salt, where all are empty; else 32 bytes.
    """
    named = [(name.encode(), part) for name, part in sorted(parts.items()) if part]
    if not named:
        return b""
    return sha256(framed(MARK, *(each for pair in named for each in pair))).digest()
