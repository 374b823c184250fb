"""Events of SGLang's kind for the store's pages that this engine can load."""

from array import array
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final, NamedTuple

from sglang.srt.disaggregation.kv_events import BlockRemoved, BlockStored, StorageMedium
from sglang.srt.mem_cache.events import KVCacheEventRecorder
from sglang.srt.mem_cache.radix_cache import RadixKey

from kvstore_client.engines.announced_pages import AnnouncedPages
from kvstore_client.engines.page_checks import PageChecks
from kvstore_client.values.packed_tokens import TOKEN_BYTES

# SGLang's tree takes arrays of this type alone.
INT64: Final = "q"


class RequestSalt(NamedTuple):
    """SGLang's namespace of a request, and the store's."""

    extra_key: str | None
    cache_salt: str | None
    store_salt: bytes


# SGLang's hashes leave some extra keys out, so the store's salt tells their pages apart.
Page = tuple[bytes, int]


class LinkerEvents:
    """``BlockStored`` and ``BlockRemoved`` of medium ``CPU_PINNED`` for pages of the store.

    A page is announced once this engine saved it or found it in a lookup. It is withdrawn once a
    lookup misses it, or the check of a thread finds that the store has it no more. The blocks have
    the hashes of SGLang's own events, from its own recorder. The scheduler's thread uses it.
    """

    def __init__(self, params: Any, pack: Callable[[Sequence[int]], bytes]) -> None:  # noqa: ANN401
        """``params`` is SGLang's ``CacheInitParams``, which says whether this rank publishes."""
        self._on = bool(params.enable_kv_cache_events)
        self._page_tokens = int(params.page_size)
        self._pack = pack
        self._recorder = KVCacheEventRecorder(
            enabled=self._on,
            page_size=self._page_tokens,
            dynamo_format=params.dynamo_kv_event_format,
            lora_names=params.kv_event_lora_names,
        )
        self._pages: AnnouncedPages[Page, bytes, Any] = AnnouncedPages(_removed)
        self._checks: PageChecks[bytes] | None = None

    def check_with(
        self, cached_pages: Callable[[bytes, bytes], int | None], usable: Callable[[], bool]
    ) -> None:
        """Begins to check announced pages on a thread, as :class:`PageChecks` does."""
        if self._on:
            self._checks = PageChecks(self._pages, cached_pages, usable)
            self._checks.start()

    def found(self, salt: RequestSalt, tokens: Sequence[int], page_count: int) -> None:
        """Notes that the store has the first ``page_count`` pages of ``tokens``, and no more."""
        if not self._on or (not page_count and not len(self._pages)):
            return
        stored, keys = self._named(salt, tokens, page_count + 1)
        self._pages.absent(keys, page_count)
        self._present(salt, tokens, stored, keys[:page_count])

    def saved(self, salt: RequestSalt, tokens: Sequence[int]) -> None:
        """Notes that the store has all whole pages of ``tokens`` that are text."""
        if self._on:
            page_count = len(self._pack(tokens)) // TOKEN_BYTES // self._page_tokens
            self._present(salt, tokens, *self._named(salt, tokens, page_count))

    def clear(self) -> None:
        """Withdraws all pages, because requests cannot load them any more."""
        self._pages.clear()

    def take(self) -> list[Any]:
        """Returns the events since the last call."""
        return self._pages.take()

    def close(self) -> None:
        """Ends the checks."""
        if self._checks is not None:
            self._checks.close()

    def _present(
        self, salt: RequestSalt, tokens: Sequence[int], stored: BlockStored, keys: Sequence[Page]
    ) -> None:
        packed = self._pack(tokens[: len(keys) * self._page_tokens])
        self._pages.present(
            salt.store_salt, keys, packed, lambda first: self._part(stored, first, len(keys))
        )

    def _named(
        self, salt: RequestSalt, tokens: Sequence[int], page_count: int
    ) -> tuple[BlockStored, list[Page]]:
        """Returns an event that has all of the first pages of ``tokens``, and their names."""
        whole = min(page_count, len(tokens) // self._page_tokens) * self._page_tokens
        stored = self._stored(salt, array(INT64, tokens[:whole]))
        return stored, [(salt.store_salt, each) for each in stored.block_hashes]

    def _stored(self, salt: RequestSalt, tokens: "array[int]") -> BlockStored:
        """Returns the event of SGLang's recorder for a path from its first page on."""
        key = RadixKey(tokens, extra_key=salt.extra_key, cache_salt=salt.cache_salt)
        root = SimpleNamespace(
            key=RadixKey(array(INT64)), parent=None, hash_value=[], event_hash_value=[]
        )
        node = SimpleNamespace(key=key, parent=root, hash_value=None, event_hash_value=None)
        self._recorder.record_store(node, StorageMedium.CPU)
        # It joins pages that follow each other in one event.
        for stored in self._recorder.take():
            return stored
        return BlockStored([], None, [], self._page_tokens, None)

    def _part(self, stored: BlockStored, first: int, end: int) -> BlockStored:
        """Returns the event of the pages from ``first`` to ``end``."""
        hashes, size = stored.block_hashes, self._page_tokens
        return BlockStored(
            block_hashes=hashes[first:end],
            parent_block_hash=hashes[first - 1] if first else None,
            token_ids=stored.token_ids[first * size : end * size],
            block_size=size,
            lora_id=stored.lora_id,
            medium=stored.medium,
            cache_salt=stored.cache_salt,
            lora_name=stored.lora_name,
        )


def _removed(pages: Sequence[Page]) -> BlockRemoved:
    return BlockRemoved(block_hashes=[number for _, number in pages], medium=StorageMedium.CPU)
