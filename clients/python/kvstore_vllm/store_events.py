"""Events of vLLM's kind for the store's pages that this engine can load."""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from vllm.distributed.kv_events import MEDIUM_CPU, BlockRemoved, BlockStored, KVCacheEvent
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.events import (
    get_offloading_event_group_spec,
)
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    resolve_block_hashes,
    to_event_extra_keys,
)

from kvstore_client.engines.announced_pages import AnnouncedPages
from kvstore_client.engines.page_checks import PageChecks
from kvstore_client.values.packed_tokens import pack_tokens
from kvstore_vllm.identity.request_key import RequestKey

_logger = logging.getLogger(__name__)

LOCAL: Final = "LOCAL"

# A page's name in the events: the hashes of its blocks.
Blocks = tuple[Any, ...]


class BlockSizes(NamedTuple):
    """Numbers of tokens: of one of a request's hashes, of a block, and of a page of the store."""

    hash_tokens: int
    block_tokens: int
    page_tokens: int


class StoreEvents:
    """``BlockStored`` and ``BlockRemoved`` of medium ``CPU`` for pages of the store.

    A page is announced once this engine stored it or found it in a lookup. It is withdrawn once a
    lookup misses it, or the check of a thread finds that the store has it no more. The blocks have
    the hashes of vLLM's own events. The scheduler's thread uses it.
    """

    def __init__(self, vllm_config: Any, group: Any, group_number: int, sizes: BlockSizes) -> None:  # noqa: ANN401  # vLLM's own
        """``group`` is the KV cache group of the path, which vLLM knows as ``group_number``.

        Makes events only if vLLM's configuration turns them on, and if a block ends where one of
        the hashes of requests does.
        """
        config = vllm_config.kv_events_config
        is_named = sizes.block_tokens % sizes.hash_tokens == 0
        self._on = config is not None and config.enable_kv_cache_events and is_named
        self._sizes = sizes
        self._group_number = group_number
        self._kind, self._window = get_offloading_event_group_spec(group)
        self._pages: AnnouncedPages[Blocks, RequestKey, KVCacheEvent] = AnnouncedPages(
            self._removed
        )
        self._checks: PageChecks[RequestKey] | None = None

    @property
    def are_waiting(self) -> bool:
        """True while events wait for vLLM to take them."""
        return self._pages.has_events

    def check_with(
        self,
        cached_pages: Callable[[RequestKey, bytes], int | None],
        usable: Callable[[], bool],
    ) -> None:
        """Begins to check announced pages on a thread, as :class:`PageChecks` does."""
        if self._on:
            self._checks = PageChecks(self._pages, cached_pages, usable)
            self._checks.start()

    def has(self, request: Any, key: RequestKey, page_count: int) -> None:  # noqa: ANN401  # a Request
        """Announces the first ``page_count`` pages of a request, those that are not yet."""
        if not self._on:
            return
        try:
            keys = self._keys(request, page_count)
            ids = key.tokens(request.all_token_ids, len(keys) * self._sizes.page_tokens)
            self._pages.present(
                key, keys, pack_tokens(ids), lambda first: self._stored(request, keys, first)
            )
        except Exception:  # none may reach the scheduler
            _logger.exception("pages_not_announced")

    def lacks(self, request: Any, key: RequestKey, page_count: int) -> None:  # noqa: ANN401  # a Request
        """Withdraws the pages of a request after the first ``page_count``."""
        del key
        if self._on and len(self._pages):
            self._pages.absent(self._keys(request, page_count + 1), page_count)

    def clear(self) -> None:
        """Withdraws all pages, because requests cannot load them any more."""
        self._pages.clear()

    def take(self) -> list[KVCacheEvent]:
        """Returns the events since the last call."""
        return self._pages.take()

    def close(self) -> None:
        """Ends the checks."""
        if self._checks is not None:
            self._checks.close()

    def _keys(self, request: Any, page_count: int) -> list[Blocks]:  # noqa: ANN401  # a Request
        """Returns the names of a request's first pages, as far as vLLM has hashed them."""
        sizes = self._sizes
        width = sizes.page_tokens // sizes.block_tokens
        hashes = resolve_block_hashes(request.block_hashes, sizes.hash_tokens, sizes.block_tokens)
        count = min(page_count, len(hashes) // width)
        named = [maybe_convert_block_hash(each) for each in hashes[: count * width]]
        return [tuple(named[at : at + width]) for at in range(0, len(named), width)]

    def _stored(self, request: Any, keys: Sequence[Blocks], first: int) -> BlockStored:  # noqa: ANN401
        lora = request.lora_request
        size, page = self._sizes.block_tokens, self._sizes.page_tokens
        starts = range(first * page, len(keys) * page, size)
        return BlockStored(
            block_hashes=[each for blocks in keys[first:] for each in blocks],
            parent_block_hash=keys[first - 1][-1] if first else None,
            token_ids=request.all_token_ids[first * page : len(keys) * page],
            block_size=size,
            lora_id=lora.adapter_id if lora else None,
            medium=MEDIUM_CPU,
            lora_name=lora.name if lora else None,
            extra_keys=to_event_extra_keys(
                [generate_block_hash_extra_keys(request, at, at + size, 0)[0] for at in starts]
            ),
            group_idx=self._group_number,
            kv_cache_spec_kind=self._kind,
            kv_cache_spec_sliding_window=self._window,
            locality=LOCAL,
            session_id=getattr(request, "session_id", None),
        )

    def _removed(self, keys: Sequence[Blocks]) -> BlockRemoved:
        return BlockRemoved(
            block_hashes=[each for blocks in keys for each in blocks],
            medium=MEDIUM_CPU,
            group_idx=self._group_number,
            locality=LOCAL,
        )
