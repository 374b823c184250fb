"""kvstore-ctl and a store's tier 3: its contents, and the questions before they are evicted."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from typer.testing import Result

from kvstore_client.testing import RunningStore, running_store, wait_until
from kvstore_ctl.bench.scratch_namespace import PAGE_TOKENS
from pages.stamped_pages import LAYOUT, open_client, write_and_insert
from processes import ctl

PAGES = 4
SLAB_BYTES = 1 << 20
SIZES = ("--tier1-bytes", str(4 << 20), "--extent-bytes", str(1 << 20))
TOKENS = list(range(PAGES * LAYOUT.page_tokens))
LOAD = ("--clients", "1", "--seconds", "0.1", "--share", "1", "--prefixes", "1")
LOAD = (*LOAD, "--prefix-tokens", "16", "--suffix-tokens", "16")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningStore]:
    """Provides a store that started with four pages on its disk and none in memory."""
    slab = ("--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", str(SLAB_BYTES))
    with running_store(*SIZES, *slab, "--tier3-write", "through") as running:
        client, namespace = open_client(running.runtime_dir)
        write_and_insert(namespace, TOKENS)
        assert wait_until(lambda: client.admin.stats().tier_3.page_count == PAGES), running.log
        client.close()
        running.restart()
        yield running


@pytest.fixture
def run(store: RunningStore) -> Callable[..., Result]:
    """Runs a command against the store."""
    return partial(ctl.run, store)


@pytest.fixture
def trace(tmp_path: Path) -> str:
    """Provides a trace of unrelated prompts with twice the pages of the disk."""
    path = tmp_path / "trace.jsonl"
    lines = (json.dumps({"tokens": [number] * 8 * PAGE_TOKENS}) for number in range(16))
    path.write_text("\n".join(lines))
    return str(path)


def evicted(store: RunningStore) -> int:
    """Returns the number of pages evicted from tier 3."""
    client, _ = open_client(store.runtime_dir)
    try:
        return client.admin.stats().tier_3.evicted_page_count
    finally:
        client.close()


def test_a_trace_asks_before_pages_leave_the_disk(
    store: RunningStore, run: Callable[..., Result], trace: str
) -> None:
    """A replay asks before it evicts pages from tier 3 alone, and reports how many it evicted."""
    refused = run("replay", trace, typed="n\n")
    assert (refused.exit_code, f"{PAGES} pages in tier 3" in refused.stderr) == (1, True)

    def makes_room() -> bool:
        """Replays until the disk was written full, which happens beside the calls."""
        before = evicted(store)
        result = run("replay", trace, "--page-bytes", str(16 << 10), "--yes", "--json")
        assert result.exit_code == 0, result.output
        found: int = json.loads(result.stdout)["evicted_pages_of_tier_3"]
        assert 0 <= found <= evicted(store) - before
        return found > 0

    assert wait_until(makes_room, 60), store.log


def test_a_load_asks_before_pages_leave_the_disk(run: Callable[..., Result]) -> None:
    """A bench asks before it evicts from tier 3, and needs no question without tier 3."""
    refused = run("bench", *LOAD, typed="n\n")
    assert (refused.exit_code, f"{PAGES} pages in tier 3" in refused.stderr) == (1, True)
    result = run("bench", *LOAD, "--yes", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["evicted_pages_of_tier_3"] >= 0


def test_what_the_disk_has_of_a_prompt_is_said(
    store: RunningStore, run: Callable[..., Result], tmp_path: Path
) -> None:
    """Peek reports a prompt's pages on the disk, also if memory has none of them."""
    prompt = tmp_path / "prompt.json"
    prompt.write_text(json.dumps([*TOKENS, 1, 2]))
    for command in (("peek",), ("pin", "system"), ("peek", "--namespace", "tiny")):
        early = run(*command, "--tokens", str(prompt))
        assert early.exit_code == 2
        assert "no worker has opened one since the store's start" in early.stderr
    client, namespace = open_client(store.runtime_dir)
    cold, count = run("peek", "--tokens", str(prompt)).stdout, len(TOKENS)
    assert cold.startswith(f"0 of {count + 2} tokens would be reused")
    assert f"tier 3 has the first {count} of them: a match may load" in cold
    loaded = run("prefetch", "--tokens", str(prompt), "--wait", "30s", "--evict", "--json")
    assert loaded.exit_code == 0, loaded.output
    answer = json.loads(loaded.stdout)
    assert (answer["memory_token_count"], answer["loading_token_count"]) == (count, 0)
    write_and_insert(namespace, TOKENS)
    assert client.flush(30)
    warm = run("peek", "--tokens", str(prompt)).stdout
    assert warm.startswith(f"{count} of {count + 2} tokens would be reused")
    assert warm.endswith(f"tier 3 has the first {count} of them\n")
    client.close()
