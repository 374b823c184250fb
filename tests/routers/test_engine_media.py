"""Dynamo's indexer on the events of engines with a store: their media are known to it.

The events have the fields of those that vLLM, SGLang and the connectors make. Those engines have
environments of their own, where `make test-vllm` and `make test-sglang` check the events.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvstore_client.testing import wait_until
from routers.dynamo_indexer import DynamoIndexer, Found, dynamo_indexer
from routers.engine_events import EngineEvents

pytestmark = [pytest.mark.routers, pytest.mark.slow, pytest.mark.timeout(300)]

PAGE, PAGES, INSTANCE = 16, 6, 3
TOKENS = list(range(1_000, 1_000 + PAGES * PAGE))
PATIENCE = 60.0
# The media of an engine's own memory and of the store's pages.
VLLM, SGLANG = ("GPU", "CPU"), ("GPU", "CPU_PINNED")


@pytest.fixture
def indexer(tmp_path: Path) -> Iterator[DynamoIndexer]:
    """Provides an indexer."""
    with dynamo_indexer(tmp_path) as made:
        yield made


def stored(medium: str, first: int, end: int, **more: object) -> dict[str, Any]:
    """Returns the event of pages of the prompt."""
    return {
        "type": "BlockStored",
        "block_hashes": [7_000 + each for each in range(first, end)],
        "parent_block_hash": 7_000 + first - 1 if first else None,
        "token_ids": TOKENS[first * PAGE : end * PAGE],
        "block_size": PAGE,
        "lora_id": None,
        "medium": medium,
        **more,
    }


def removed(medium: str, first: int, end: int) -> dict[str, Any]:
    """Returns the event that removes pages, the last ones first."""
    hashes = [7_000 + each for each in range(first, end)]
    return {"type": "BlockRemoved", "block_hashes": hashes[::-1], "medium": medium}


@pytest.mark.parametrize(
    ("media", "more"),
    [
        (VLLM, {"locality": "LOCAL", "group_idx": 0, "kv_cache_spec_kind": "full_attention"}),
        (SGLANG, {}),
    ],
    ids=["vLLM", "SGLang"],
)
def test_the_store_s_pages_are_memory_of_the_engine_s_host(
    indexer: DynamoIndexer, media: tuple[str, str], more: dict[str, object]
) -> None:
    """A prefix of the engine's own blocks, and the longer one of the store, come and go."""
    device, memory = media
    with EngineEvents() as engine:
        indexer.register(INSTANCE, engine.endpoint, None, PAGE)
        engine.wait_subscribed()

        def expect(gpu: int, cpu: int) -> None:
            wanted = Found(gpu * PAGE, cpu * PAGE, cpu * PAGE)
            wait_until(lambda: indexer.find(INSTANCE, TOKENS) == wanted, PATIENCE)
            assert indexer.find(INSTANCE, TOKENS) == wanted

        # A lookup finds five pages, and vLLM then caches what it loaded of them.
        engine.publish(stored(memory, 0, 5, **more))
        expect(0, 5)
        engine.publish(stored(device, 0, 5), stored(device, 5, 6))
        expect(6, 6)
        engine.publish(stored(memory, 5, 6, **more))
        engine.publish(removed(device, 2, 6))
        expect(2, 6)
        engine.publish(removed(memory, 4, 6))
        expect(2, 4)
        engine.publish(removed(memory, 0, 4))
        expect(2, 2)
