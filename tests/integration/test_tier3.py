"""Tier 3 of a real store, with real clients: what was written comes back after any end of it."""

from pathlib import Path

import pytest
from patterned_pages import LAYOUT, SMALL_STORE, holds_pattern, open_client, write_and_insert

from kvstore.v1 import store_pb2
from kvstore_client import Client, ClientConfig, Namespace
from kvstore_client.testing import RunningStore, running_store, wait_until

PAGES = 4
LIMIT = 30.0
SLAB_BYTES = 4 << 20
PROMPTS = [
    [number % 3] * LAYOUT.page_tokens
    + [10_000 * number + each for each in range((PAGES - 1) * LAYOUT.page_tokens + 1)]
    for number in range(1, 7)
]


def settings(path: Path, *more: str) -> tuple[str, ...]:
    """Return the command line of a store with a slab."""
    slab = ("--tier3-path", str(path), "--tier3-bytes", str(SLAB_BYTES))
    return (*SMALL_STORE, "--verify-rate", "1", *slab, *more)


def tier_3(client: Client) -> store_pb2.Tier3Stats:
    """Return what the store says of its tier 3."""
    return client.admin.stats().tier_3


def kept(client: Client, tokens: list[int]) -> bool:
    """Tell whether all whole pages of a prompt are in tier 3 for good."""
    [info] = client.admin.namespaces()
    peeked = client.admin.peek_prefix(info.namespace_id, tokens)
    return peeked.tier_3_token_count == PAGES * LAYOUT.page_tokens


def write_all(store: RunningStore, prompts: list[list[int]]) -> None:
    """Have prompts inserted, and matched, until tier 3 has them."""
    client, namespace = open_client(store.runtime_dir)
    try:
        for tokens in prompts:
            write_and_insert(namespace, tokens)
        for tokens in prompts:
            namespace.match(tokens).release()
        assert wait_until(lambda: all(kept(client, each) for each in prompts)), (
            tier_3(client),
            store.log,
        )
    finally:
        client.close()


def is_whole(namespace: Namespace, tokens: list[int]) -> bool:
    """Match a prompt, compare its bytes, and return whether all of it is there.

    Not at once where tier 1 has to grow and this process to map what it got.
    """
    with namespace.match(tokens) as match:
        assert holds_pattern(namespace, tokens, match.pages)
        assert match.current
        return match.page_count == PAGES


@pytest.mark.parametrize("hot_lane", [True, False])
def test_what_was_kept_is_matched_after_a_restart(tmp_path: Path, *, hot_lane: bool) -> None:
    """Over a lane and over gRPC, with the bytes that were written."""
    with running_store(*settings(tmp_path / "slab")) as store:
        write_all(store, PROMPTS)
        store.restart()
        config = ClientConfig(call_timeout=LIMIT, hot_lane=hot_lane)
        client, namespace = open_client(store.runtime_dir, config)
        for tokens in PROMPTS:
            assert wait_until(lambda tokens=tokens: is_whole(namespace, tokens)), store.log
        assert client.admin.stats().counters.loaded_page_count > 0
        client.close()
    assert "Traceback" not in store.log
