"""Tier 3 of a real store with real clients: written pages return after any end of the store."""

import resource
from pathlib import Path

import pytest

from kvstore.v1 import store_pb2
from kvstore_client import Client, ClientConfig, Namespace
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    LAYOUT,
    SMALL_STORE,
    holds_tokens,
    open_client,
    page_bytes,
    write_and_insert,
)

PAGES = 4
LIMIT = 30.0
SLAB_BYTES = 4 << 20
PROMPTS = [
    [number % 3] * LAYOUT.page_tokens
    + [10_000 * number + each for each in range((PAGES - 1) * LAYOUT.page_tokens + 1)]
    for number in range(1, 7)
]


# Bytes of the file before its first slot.
FIRST_SLOTS = 32 << 10


def spoil(path: Path, content: bytes) -> None:
    """Changes a byte of a page in a file."""
    data = path.read_bytes()
    assert data.count(content) == 1
    with path.open("r+b") as file:
        file.seek(data.index(content) + 7)
        file.write(bytes([content[7] ^ 1]))


def settings(path: Path, *more: str) -> tuple[str, ...]:
    """Returns the command line of a store with a slab."""
    slab = ("--tier3-path", str(path), "--tier3-bytes", str(SLAB_BYTES))
    return (*SMALL_STORE, "--verify-rate", "1", *slab, *more)


def tier_3(client: Client) -> store_pb2.Tier3Stats:
    """Returns the statistics of the store's tier 3."""
    return client.admin.stats().tier_3


def kept(client: Client, tokens: list[int]) -> bool:
    """Returns whether all whole pages of a prompt are in tier 3."""
    [info] = client.admin.namespaces()
    peeked = client.admin.peek_prefix(info.namespace_id, tokens)
    return peeked.tier_3_token_count == PAGES * LAYOUT.page_tokens


def write_all(store: RunningStore, prompts: list[list[int]]) -> None:
    """Inserts and matches prompts until tier 3 has them all.

    A prompt that had to make room for another is offered again, because tier 1 grows beside the
    calls.
    """
    client, namespace = open_client(store.runtime_dir)

    def offer() -> bool:
        for tokens in prompts:
            if not kept(client, tokens):
                write_and_insert(namespace, tokens)
                namespace.match(tokens).release()
        return all(kept(client, each) for each in prompts)

    try:
        assert wait_until(offer), (tier_3(client), store.log)
    finally:
        client.close()


def matched(namespace: Namespace, tokens: list[int]) -> int:
    """Matches a prompt and compares its bytes. Returns the number of pages."""
    with namespace.match(tokens) as match:
        assert holds_tokens(namespace, tokens, list(match.pages))
        assert match.current
        return match.page_count


def test_pages_of_the_disk_are_told_from_those_of_memory(tmp_path: Path) -> None:
    """The first match after a restart names tier 3 for its pages, and later ones name memory."""
    with running_store(*settings(tmp_path / "slab")) as store:
        write_all(store, PROMPTS[:1])
        for hot_lane in (True, False):
            store.restart()
            config = ClientConfig(call_timeout=LIMIT, hot_lane=hot_lane)
            client, namespace = open_client(store.runtime_dir, config)
            first = first_tiers(namespace, PROMPTS[0])
            with namespace.match(PROMPTS[0]) as again:
                assert (first, again.page_tiers) == ([3] * PAGES, [1] * PAGES)
            client.close()


def first_tiers(namespace: Namespace, tokens: list[int]) -> list[int]:
    """Matches a prompt until it is whole; returns the tier that each page had at first."""
    tiers: list[int] = []

    def whole() -> bool:
        with namespace.match(tokens) as match:
            tiers.extend(match.page_tiers[len(tiers) :])
            return match.page_count == PAGES

    assert wait_until(whole)
    return tiers


def is_whole(namespace: Namespace, tokens: list[int]) -> bool:
    """Returns whether a whole prompt is matched."""
    return matched(namespace, tokens) == PAGES


def becomes_whole(namespace: Namespace, tokens: list[int]) -> bool:
    """Waits until a whole prompt is matched, because tier 1 may have to grow first."""
    return wait_until(lambda: is_whole(namespace, tokens))


def test_what_was_kept_is_matched_after_a_restart(tmp_path: Path) -> None:
    """Pages in tier 3 are matched after a restart with their bytes, over a lane and over gRPC."""
    with running_store(*settings(tmp_path / "slab")) as store:
        write_all(store, PROMPTS)
        for hot_lane in (True, False):
            store.restart()
            config = ClientConfig(call_timeout=LIMIT, hot_lane=hot_lane)
            client, namespace = open_client(store.runtime_dir, config)
            for tokens in PROMPTS:
                assert becomes_whole(namespace, tokens), store.log
            assert client.admin.stats().counters.loaded_page_count > 0
            client.close()
        assert "Traceback" not in store.log


def test_what_the_disk_spoilt_is_a_miss(tmp_path: Path) -> None:
    """A page that changed on the disk between two runs is not served. The pages before it are."""
    path = tmp_path / "slab"
    with running_store(*settings(path)) as store:
        write_all(store, PROMPTS[:2])
        store.kill()
        spoil(path, page_bytes(PROMPTS[0], 2))
        store.start()
        client, namespace = open_client(store.runtime_dir)
        assert not is_whole(namespace, PROMPTS[0])
        assert namespace.peek(PROMPTS[0]) == 2 * LAYOUT.page_tokens
        assert is_whole(namespace, PROMPTS[1])
        assert tier_3(client).corrupt_page_count == 1
        assert tier_3(client).state == store_pb2.Tier3Stats.STATE_OPEN
        client.close()
        assert "slab_pages_corrupt" in store.log


def test_a_page_found_corrupt_does_not_return(tmp_path: Path) -> None:
    """A page found corrupt stays away after a restart, although the disk's copy was right."""
    with running_store(*settings(tmp_path / "slab")) as store:
        write_all(store, PROMPTS[:2])
        client, namespace = open_client(store.runtime_dir)
        with namespace.match(PROMPTS[0]) as match:
            namespace.page(match.pages[1])[:] = bytes(LAYOUT.page_bytes)
        assert matched(namespace, PROMPTS[0]) == 1
        store.restart()
        client.close()
        client, namespace = open_client(store.runtime_dir)
        assert matched(namespace, PROMPTS[0]) == 1
        assert is_whole(namespace, PROMPTS[1])
        client.close()


def test_a_disk_that_fails_costs_hits_alone(tmp_path: Path) -> None:
    """A failed disk costs only its hits, and is reported in statistics and log."""
    with running_store(*settings(tmp_path / "slab", "--tier3-write", "through")) as store:
        client, namespace = open_client(store.runtime_dir)
        write_and_insert(namespace, PROMPTS[0])
        assert wait_until(lambda: kept(client, PROMPTS[0]))
        # From here on no file of the store's may have a byte beyond.
        resource.prlimit(store.pid, resource.RLIMIT_FSIZE, (FIRST_SLOTS, FIRST_SLOTS))
        write_and_insert(namespace, PROMPTS[1])
        failed = store_pb2.Tier3Stats.STATE_FAILED
        assert wait_until(lambda: tier_3(client).state == failed), store.log
        assert all(is_whole(namespace, each) for each in PROMPTS[:2])
        assert not kept(client, PROMPTS[0])
        client.close()
        # Its line comes behind the state, which whoever asks may see before.
        assert wait_until(lambda: "slab_failed" in store.log)


def test_a_slab_has_one_server(tmp_path: Path) -> None:
    """A second server on the same slab does not start, and names the file."""
    path = str(tmp_path / "slab")
    second = running_store(*settings(Path(path)))
    with running_store(*settings(Path(path))), pytest.raises(RuntimeError, match=path), second:
        pass
