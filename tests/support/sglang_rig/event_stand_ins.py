"""Stand-ins of SGLang's KV events, and of the recorder that makes them."""

from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import Any


class StorageMedium(StrEnum):
    """The names of media."""

    GPU = "GPU"
    CPU = "CPU_PINNED"


@dataclass
class BlockStored:
    """The event of stored blocks."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None = None
    cache_salt: str | None = None
    session_id: str | None = None
    lora_name: str | None = None


@dataclass
class BlockRemoved:
    """The event of removed blocks."""

    block_hashes: list[int]
    medium: str | None = None


class KVCacheEventRecorder:
    """Makes one event of the pages of a node whose parent is the root."""

    def __init__(
        self,
        *,
        enabled: bool,
        page_size: int,
        dynamo_format: bool,
        lora_names: Any,  # noqa: ANN401
    ) -> None:
        del dynamo_format, lora_names
        self._enabled = enabled
        self._page_size = page_size
        self._events: list[BlockStored] = []

    def record_store(self, node: Any, medium: StorageMedium) -> None:  # noqa: ANN401
        """Records a node, if it has a page."""
        assert self._enabled
        assert node.parent.parent is None
        assert not node.parent.hash_value
        tokens, size = list(node.key.token_ids), self._page_size
        hashes = [block_hash(tokens[:end]) for end in range(size, len(tokens) + 1, size)]
        if hashes:
            salt = node.key.cache_salt
            stored = BlockStored(hashes, None, tokens, size, None, medium, cache_salt=salt)
            self._events.append(stored)

    def take(self) -> list[BlockStored]:
        """Returns the events since the last call."""
        events, self._events = self._events, []
        return events


def block_hash(tokens: list[int]) -> int:
    """Returns the hash of the page that ends a path. Extra keys and salts count for nothing."""
    return int.from_bytes(sha256(repr(tokens).encode()).digest()[:7], "big")
