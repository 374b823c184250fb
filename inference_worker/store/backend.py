"""The index that finds cached prefixes, and the check that a store has it."""

from enum import StrEnum
from pathlib import Path

import kvstore_client
from inference_worker.errors import BackendMismatchError
from kvstore_client.errors import StoreError


class PrefixCacheBackend(StrEnum):
    """The index that finds the prefix of a prompt: one of a store's, or none."""

    RADIX = "radix"
    HASH = "hash"
    NONE = "none"


def store_arguments(wanted: PrefixCacheBackend | None) -> tuple[str, ...]:
    """Returns kvstore-server's arguments for an index; none for its default."""
    return () if wanted is None else ("--prefix-cache-backend", wanted)


def check_backend(runtime_dir: Path | None, wanted: PrefixCacheBackend | None) -> None:
    """Compares ``wanted`` with the index of the store in ``runtime_dir``; None accepts any.

    A store that does not run now, or is too old to name its index, is not compared: both indexes
    find the same pages. Raises ``BackendMismatchError``, and ``ValueError`` for a path that is too
    long.
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
