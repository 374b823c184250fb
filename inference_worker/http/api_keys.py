"""The users of the HTTP server: names and their keys, from a file."""

import hashlib
import hmac
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

MIN_KEY_LENGTH: Final = 16
MAX_NAME_BYTES: Final = 64
# Only the owner may write the file; its group may read it, others may do neither.
NOT_SECRET: Final = stat.S_IWGRP | stat.S_IRWXO


class ApiKeys:
    """Users by the digests of their keys. A key is compared with each in constant time."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        """Takes each user's key, by name."""
        self._digests = {name: _digest(key) for name, key in keys.items()}

    def user_of(self, key: str) -> str | None:
        """Returns the user of a key, or None."""
        given, found = _digest(key), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(digest, given):
                found = name
        return found


def read_api_keys(path: Path) -> ApiKeys:
    """Reads a file of lines ``name key``; ``#`` begins a comment.

    Raises ``ValueError`` for a file that others can read, a malformed line, a short key, a repeated
    name or no key at all, and ``OSError`` if it cannot be read.
    """
    with path.open(encoding="utf-8") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & NOT_SECRET:
            raise ValueError(f"{path} has mode {mode:04o}, and others can read it: chmod 600 it")
        lines = [line.partition("#")[0].split() for line in file]
    keys: dict[str, str] = {}
    for number, words in enumerate(lines, 1):
        match words:
            case []:
                continue
            case [name, key] if name not in keys and _fit(name, key):
                keys[name] = key
            case _:
                raise ValueError(
                    f"{path}, line {number}: a name of its own of at most {MAX_NAME_BYTES} bytes "
                    f"and a key of at least {MIN_KEY_LENGTH} characters are wanted"
                )
    if not keys:
        raise ValueError(f"{path} has no key")
    return ApiKeys(keys)


def salt_of(user: str | None, cache_salt: str) -> str:
    """Joins a user's name, which has no space, and the salt of a request.

    Users therefore share nothing, whatever salts they choose.
    """
    return cache_salt if user is None else f"{user} {cache_salt}"


def _fit(name: str, key: str) -> bool:
    return len(name.encode()) <= MAX_NAME_BYTES and len(key) >= MIN_KEY_LENGTH


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
