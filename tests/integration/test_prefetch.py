"""Prefetches of a real store with a disk, by workers and by operators."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client import Client, ClientConfig, Namespace, Prefetched, StoreStep
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import LAYOUT, SMALL_STORE, holds_tokens, open_client, write_and_insert
from processes.ctl import run, run_json

PAGES = 4
LIMIT = 30.0
TOKENS = list(range(PAGES * LAYOUT.page_tokens + 1))
WHOLE = PAGES * LAYOUT.page_tokens
IN_MEMORY = Prefetched(memory_token_count=WHOLE)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningStore]:
    """Provides a store that started with four pages on its disk and none in memory."""
    slab = ("--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", str(4 << 20))
    with running_store(*SMALL_STORE, *slab, "--tier3-write", "through") as running:
        client, namespace = open_client(running.runtime_dir)
        write_and_insert(namespace, TOKENS)
        assert wait_until(lambda: client.admin.stats().tier_3.page_count == PAGES), running.log
        client.close()
        running.restart()
        yield running


def read_pages(client: Client) -> int:
    """Returns how many pages the store has read from its disk."""
    return client.admin.stats().tier_3.read_page_count


def check_whole(namespace: Namespace) -> None:
    """Matches the prompt, whose pages were all in memory and hold what was written."""
    with namespace.match(TOKENS) as match:
        assert match.page_tiers == [1] * PAGES
        assert holds_tokens(namespace, TOKENS, list(match.pages))


@pytest.mark.parametrize("hot_lane", [True, False], ids=["lane", "grpc"])
def test_a_match_after_a_prefetch_reads_nothing(store: RunningStore, *, hot_lane: bool) -> None:
    """The pages are in memory before the match, and their bytes are what was written."""
    config = ClientConfig(call_timeout=LIMIT, hot_lane=hot_lane)
    client, namespace = open_client(store.runtime_dir, config)
    assert namespace.can_prefetch
    first = namespace.prefetch(TOKENS)
    assert first.failure is None
    assert first.memory_token_count + first.loading_token_count == WHOLE
    assert wait_until(lambda: namespace.prefetch(TOKENS) == IN_MEMORY), store.log
    assert read_pages(client) == PAGES
    check_whole(namespace)
    assert read_pages(client) == PAGES
    assert client.flush(LIMIT)
    stats = client.admin.stats()
    assert (stats.pin_count, stats.counters.evicted_page_count) == (0, 0)
    assert (stats.counters.lookup_count, stats.counters.loaded_page_count) == (1, PAGES)
    client.close()


@pytest.mark.parametrize("hot_lane", [True, False], ids=["lane", "grpc"])
def test_a_step_prefetches(store: RunningStore, *, hot_lane: bool) -> None:
    """The pages are in memory after one call for several requests."""
    config = ClientConfig(call_timeout=LIMIT, hot_lane=hot_lane)
    client, namespace = open_client(store.runtime_dir, config)

    def prefetched() -> list[Prefetched]:
        with StoreStep(namespace) as step:
            outcomes = [step.prefetch(TOKENS), step.prefetch(TOKENS[: LAYOUT.page_tokens])]
        return [each.result() for each in outcomes]

    first, _ = prefetched()
    assert first.memory_token_count + first.loading_token_count == WHOLE
    one_page = Prefetched(memory_token_count=LAYOUT.page_tokens)
    assert wait_until(lambda: prefetched() == [IN_MEMORY, one_page]), store.log
    assert read_pages(client) == PAGES
    check_whole(namespace)


def test_an_operator_prefetches_without_a_lease(store: RunningStore, tmp_path: Path) -> None:
    """The command says what is loaded, and workers then match it in memory."""
    prompt = tmp_path / "prompt.json"
    prompt.write_text(json.dumps(TOKENS))
    none_open = run(store, "prefetch", "--tokens", str(prompt))
    assert (none_open.exit_code, "no worker has opened one" in none_open.stderr) == (2, True)
    client, namespace = open_client(store.runtime_dir)
    begun = run(store, "prefetch", "--tokens", str(prompt))
    assert begun.exit_code == 0, begun.output
    assert f" of {len(TOKENS)} tokens are in memory in " in begun.stdout

    def is_there() -> bool:
        answer = run_json(store, "prefetch", "--tokens", str(prompt))
        assert answer["declined_token_count"] == 0
        return bool(answer["memory_token_count"] == WHOLE)

    assert wait_until(is_there), store.log
    check_whole(namespace)
    client.close()


def test_a_store_without_tier_3_says_so(tmp_path: Path) -> None:
    """Clients make no call, and the command tells the operator why nothing is loaded."""
    prompt = tmp_path / "prompt.json"
    prompt.write_text(json.dumps(TOKENS))
    with running_store(*SMALL_STORE) as store:
        client, namespace = open_client(store.runtime_dir)
        write_and_insert(namespace, TOKENS)
        assert not namespace.can_prefetch
        assert namespace.prefetch(TOKENS) == Prefetched()
        told = run(store, "prefetch", "--tokens", str(prompt))
        assert told.exit_code == 0, told.output
        assert f"{WHOLE} of {len(TOKENS)} tokens are in memory in " in told.stdout
        assert "no tier 3" in told.stdout
        client.close()
