"""What finds the prefixes of prompts, and whether a store has it."""

from enum import StrEnum
from pathlib import Path

import kvstore_client
from inference_worker.errors import BackendMismatchError
from kvstore_client.errors import StoreError


class PrefixCacheBackend(StrEnum):
    """What finds the prefix of a prompt: one of a store's indexes, or nothing."""

    RADIX = "radix"
    HASH = "hash"
    NONE = "none"


def store_arguments(wanted: PrefixCacheBackend | None) -> tuple[str, ...]:
    """Returns what has a kvstore-server find prefixes so; nothing: as it does by itself."""
    return () if wanted is None else ("--prefix-cache-backend", wanted)


def check_backend(runtime_dir: Path | None, wanted: PrefixCacheBackend | None) -> None:
    """Compares ``wanted`` with the index of the store in ``runtime_dir``; None is content with any.

    A store that is not there now, or is too old to say, is not compared: both indexes find the
    same pages. Raises ``BackendMismatchError``, and ``ValueError`` for a path too long.
    """
    if wanted is None or wanted is PrefixCacheBackend.NONE:
        return
    try:
        with kvstore_client.connect_admin(runtime_dir) as admin:
            found = admin.capabilities().prefix_cache_backend
    except StoreError:
        return
    if found and found != wanted:
        raise BackendMismatchError(wanted, found)
