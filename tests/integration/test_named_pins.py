"""Named pins of a real store, under pressure and over the ends of workers and store."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvstore_client import Client, Namespace
from kvstore_client.testing import RunningStore, wait_until
from pages.stamped_pages import (
    LAYOUT,
    SMALL_STORE,
    TOKENS,
    open_client,
    stamps_of,
    write_and_insert,
)
from processes.page_worker import page_process

PINNED = len(TOKENS) // LAYOUT.page_tokens * LAYOUT.page_tokens
# Sixteen times four pages, for a store of 32 slots.
PRESSURE = [list(range(start, start + 17)) for start in range(10_000, 26_000, 1_000)]
pytestmark = pytest.mark.store(*SMALL_STORE)


@pytest.fixture
def opened(fresh_store: RunningStore) -> Iterator[tuple[Client, Namespace, bytes]]:
    """Provides a client, its namespace with four cached pages, and the namespace's id."""
    client, namespace = open_client(fresh_store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    (space,) = client.admin.namespaces()
    yield client, namespace, space.namespace_id
    client.close()


def press(namespace: Namespace) -> None:
    """Fills the store twice over."""
    for tokens in PRESSURE:
        write_and_insert(namespace, tokens)


def reads_right(namespace: Namespace) -> bool:
    """Returns whether all that was pinned is matched; raises WrongPage for other bytes."""
    with namespace.match(TOKENS) as match:
        stamps = stamps_of(namespace, TOKENS, match.pages)
        return match.token_count == PINNED == len(stamps) * LAYOUT.page_tokens


def test_pinned_pages_stay_under_pressure_until_unpinned(
    opened: tuple[Client, Namespace, bytes],
) -> None:
    """Pinned pages stay however often the store is filled, and are evicted after unpinning."""
    client, namespace, namespace_id = opened
    answer = client.admin.pin_prefix(namespace_id, "system", TOKENS, require_all=True)
    assert answer.pinned_token_count == PINNED
    press(namespace)
    assert client.admin.stats().counters.evicted_page_count >= 32
    assert reads_right(namespace)
    client.admin.unpin_prefix(namespace_id, "system")
    # Matched just now, it is the most recently used: twice over, to reach it.
    press(namespace)
    assert namespace.peek(TOKENS) == 0


def test_a_pin_ends_by_itself(
    fresh_store: RunningStore, opened: tuple[Client, Namespace, bytes]
) -> None:
    """A pin ends at its TTL with a log line, and its pages may then be evicted."""
    client, namespace, namespace_id = opened
    client.admin.pin_prefix(namespace_id, "brief", TOKENS, ttl=0.2)
    client.admin.pin_prefix(namespace_id, "long", TOKENS[:4], ttl=3_600)
    assert wait_until(lambda: [p.name for p in client.admin.named_pins()] == ["long"])
    # Its line comes behind the pin's end, which whoever asks may see before.
    assert wait_until(lambda: "named_pin_expired" in fresh_store.log)
    press(namespace)
    assert namespace.peek(TOKENS) == LAYOUT.page_tokens


def test_a_pin_outlives_the_workers_that_wrote_it(
    fresh_store: RunningStore, tmp_path: Path
) -> None:
    """A pin from the command line keeps a dead worker's pages for later workers."""
    prompt = tmp_path / "prompt"
    prompt.write_text(" ".join(map(str, TOKENS)), encoding="utf-8")
    command = [sys.executable, "-m", "kvstore_ctl", "pin", "system", "--require-all"]
    command += ["--tokens", str(prompt), "--runtime-dir", str(fresh_store.runtime_dir)]
    with page_process(fresh_store.runtime_dir) as writer:
        writer.ask("write", TOKENS)
        subprocess.run(command, check=True, capture_output=True)
        writer.signal(signal.SIGKILL)
        writer.wait_exit()
    client, namespace = open_client(fresh_store.runtime_dir)
    press(namespace)
    assert reads_right(namespace)
    client.close()


def test_a_pin_does_not_outlive_the_store(
    fresh_store: RunningStore, opened: tuple[Client, Namespace, bytes]
) -> None:
    """After a restart of the store the pin and its namespace are gone."""
    client, _, namespace_id = opened
    client.admin.pin_prefix(namespace_id, "system", TOKENS)
    fresh_store.restart()
    later, _ = open_client(fresh_store.runtime_dir)
    assert later.admin.named_pins() == []
    assert namespace_id not in {each.namespace_id for each in later.admin.namespaces()}
    later.close()
