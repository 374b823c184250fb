"""What keeps namespaces of one model apart: a salt of 32 bytes, whatever it is made of."""

from hashlib import sha256
from typing import Final

LENGTH_BYTES: Final = 8
MARK: Final = b"kvstore_vllm salt 1"


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
