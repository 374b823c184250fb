"""kvstore-server --holder systemd, on a stand-in for systemd: no systemd runs here."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kvstore_client import Client, ClientConfig
from kvstore_client.testing import RunningStore, wait_until
from pages.stamped_pages import (
    LIMIT,
    SMALL_STORE,
    TOKENS,
    nothing_held,
    open_client,
    stamps_of,
    write_and_insert,
)
from processes.notify_stand_in import NotifyStandIn
from processes.page_worker import page_process

PAGES = 4
MOST = 100


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[NotifyStandIn]:
    """Provides a service manager for a hundred descriptors."""
    with NotifyStandIn(tmp_path / "notify", MOST) as made:
        yield made


@pytest.fixture
def store(manager: NotifyStandIn, tmp_path: Path) -> Iterator[RunningStore]:
    """Provides a server that this manager started."""
    runtime_dir = tmp_path / "run"
    runtime_dir.mkdir(mode=0o700)
    arguments = (*SMALL_STORE, "--holder", "systemd")
    running = RunningStore(runtime_dir, arguments, program=manager.program())
    running.start()
    yield running
    running.kill()


def epoch_of(store: RunningStore) -> int | None:
    """Returns the epoch of a store that serves."""
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        assert wait_until(lambda: client.connected)
        return client.store_epoch


def found(store: RunningStore, tokens: list[int]) -> int:
    """Returns how many pages of a prompt a new client finds, all with the right bytes."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client), namespace.match(tokens) as match:
        assert len(stamps_of(namespace, tokens, match.pages)) == match.page_count
        return match.page_count


@pytest.mark.parametrize("end", [RunningStore.kill, RunningStore.stop], ids=["SIGKILL", "SIGTERM"])
def test_the_next_server_goes_on(
    store: RunningStore, end: Callable[[RunningStore], int], manager: NotifyStandIn
) -> None:
    """It has the pages, their epoch, and the pins of a worker that lives."""
    with page_process(store.runtime_dir) as worker:
        worker.ask("write", TOKENS)
        assert worker.ask("match", "key", TOKENS) == PAGES * 4
        epoch = epoch_of(store)
        for _ in range(2):
            end(store)
            store.start()
            assert epoch_of(store) == epoch
            assert found(store, TOKENS) == PAGES
            worker.ask("check", "key")
    assert store.log.count("store_recovered") == 2
    assert len({name for name, _, _ in manager.stored}) == len(manager.stored)


def test_a_worker_that_dies_meanwhile_returns_all(store: RunningStore) -> None:
    """The manager keeps the pidfd of a dead process, since the server asks for that."""
    with page_process(store.runtime_dir) as worker:
        worker.ask("write", TOKENS)
        worker.ask("match", "pin", TOKENS)
        store.kill()
        worker.kill()
    store.start()
    assert "store_recovered" in store.log
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        assert wait_until(lambda: client.connected)
        assert nothing_held(client)
    assert found(store, TOKENS) == PAGES


def test_sigint_ends_the_memory(store: RunningStore, manager: NotifyStandIn) -> None:
    """Nothing stays with the manager, and the next server begins empty."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
    epoch = epoch_of(store)
    os.kill(store.pid, signal.SIGINT)
    assert store._started().wait(LIMIT) == 0
    assert manager.stored == []
    store.start()
    assert epoch_of(store) != epoch
    assert found(store, TOKENS) == 0
