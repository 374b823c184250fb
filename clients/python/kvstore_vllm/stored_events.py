"""Events of vLLM's kind for pages that this engine put into the store."""

from collections.abc import Sequence
from typing import Any, Final

from vllm.distributed.kv_events import BlockStored, KVCacheEvent
from vllm.v1.core.kv_cache_utils import (
    generate_block_hash_extra_keys,
    maybe_convert_block_hash,
    to_event_extra_keys,
)

MEDIUM: Final = "kvstore"


class StoredEvents:
    """Collects a ``BlockStored`` for each insert, until vLLM takes them.

    The store evicts without an event to the engine, so no removal is ever reported. A reported
    page was in the store and may still be.
    """

    def __init__(self, vllm_config: Any) -> None:  # noqa: ANN401  # a VllmConfig
        """Collects only if ``vllm_config.kv_events_config`` turns events on."""
        config = vllm_config.kv_events_config
        self._on = config is not None and config.enable_kv_cache_events
        self._block_size: int = vllm_config.cache_config.block_size
        self._events: list[KVCacheEvent] = []

    def stored(self, request: Any, start_page: int, end_page: int) -> None:  # noqa: ANN401  # a Request
        """Notes that pages ``start_page`` to ``end_page`` of a request are in the store.

        Makes no event if the request's own hashes are of other sizes than a page.
        """
        size = self._block_size
        hashes: Sequence[bytes] = request.block_hashes
        if not self._on or len(hashes) != request.num_tokens // size:
            return
        hashes = [maybe_convert_block_hash(each) for each in hashes[:end_page]]
        if start_page >= len(hashes):
            return
        lora = request.lora_request
        self._events.append(
            BlockStored(
                block_hashes=hashes[start_page:],
                parent_block_hash=hashes[start_page - 1] if start_page else None,
                token_ids=request.all_token_ids[start_page * size : len(hashes) * size],
                block_size=size,
                lora_id=lora.adapter_id if lora else None,
                medium=MEDIUM,
                lora_name=lora.name if lora else None,
                extra_keys=to_event_extra_keys(
                    [
                        generate_block_hash_extra_keys(request, at * size, (at + 1) * size, 0)[0]
                        for at in range(start_page, len(hashes))
                    ]
                ),
                locality="LOCAL",
            )
        )

    def take(self) -> list[KVCacheEvent]:
        """Returns the events collected since the last call."""
        events, self._events = self._events, []
        return events
