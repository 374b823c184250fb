"""The end of the store, of a lease or of a worker: misses, and the recovery."""

import signal
from pathlib import Path
from threading import Thread

import pytest

from kvstore.v1 import lease_pb2
from kvstore_client import Client, ClientConfig, Namespace, connect_admin, errors
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    TOKENS,
    holds_tokens,
    memfd_mappings,
    nothing_held,
    open_client,
    stamps_of,
    write_and_insert,
)
from processes.page_worker import page_process

ACTIVE = lease_pb2.LeaseInfo.STATE_ACTIVE
EXPIRED = lease_pb2.LeaseInfo.STATE_EXPIRED
pytestmark = pytest.mark.store(*SMALL_STORE)


def closes(client: Client) -> bool:
    """Closes a client. Returns whether that ended in time."""
    thread = Thread(target=client.close, daemon=True)
    thread.start()
    thread.join(LIMIT)
    return not thread.is_alive()


def leases_by_state(store: RunningStore, name: str) -> list[int]:
    """Returns the states of the leases with one display name."""
    with connect_admin(store.runtime_dir) as admin:
        return [each.state for each in admin.leases() if each.display_name == name]


def insert_as_another(store: RunningStore) -> None:
    """Inserts the tokens' pages by another client, which has a long timeout."""
    client, namespace = open_client(store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    client.close()


def test_another_process_reads_what_was_written(fresh_store: RunningStore) -> None:
    """A process matches and reads in place the pages that another, ended process inserted."""
    with page_process(fresh_store.runtime_dir) as writer:
        assert writer.ask("acquire", "all", TOKENS) == 0
        writer.ask("fill", "all")
        pages, _ = writer.ask("insert", "all", 0, 4)
    client, namespace = open_client(fresh_store.runtime_dir)
    with namespace.match(TOKENS) as match:
        assert match.pages == pages
        assert len(stamps_of(namespace, TOKENS, match.pages)) == 4
    client.close()


def test_an_absent_store_is_a_miss_until_it_is_started(tmp_path: Path) -> None:
    """A match misses without a call until the store runs, and the client then finds it."""
    with running_store(start=False) as store:
        client = Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT))
        client.start()
        namespace = client.namespace(IDENTITY, LAYOUT)
        with namespace.acquire(TOKENS, total_page_count=4) as acquired:
            assert isinstance(acquired.failure, errors.StoreUnavailable)
            assert acquired.reservation is None
        with pytest.raises(errors.StoreUnavailable):
            namespace.reserve(start_page=0, page_count=1)
        assert (client.connected, client.store_epoch, dict(namespace.extents)) == (False, None, {})
        store.start()
        assert namespace.wait_open(LIMIT)
        assert client.connected
        write_and_insert(namespace, TOKENS)
        client.close()
    assert list(tmp_path.iterdir()) == []


def test_a_killed_store_is_a_miss_and_its_successor_is_used(fresh_store: RunningStore) -> None:
    """After a kill matches miss. After the restart there is a new epoch and no old mapping."""
    before = memfd_mappings()
    client, namespace = open_client(fresh_store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    epoch, number = client.store_epoch, namespace.session_number
    fresh_store.kill()
    assert wait_until(lambda: client.store_epoch is None)
    assert namespace.match(TOKENS).failure is not None
    fresh_store.restart()
    assert namespace.wait_open(LIMIT)
    assert client.store_epoch not in (None, epoch)
    assert namespace.session_number > number
    assert memfd_mappings() == before + 1
    assert namespace.match(TOKENS).failure is None
    write_and_insert(namespace, TOKENS)
    client.close()
    assert memfd_mappings() == before


def test_what_is_held_outlives_its_store(fresh_store: RunningStore) -> None:
    """A match stays readable after its store died, and the client attaches after its release."""
    client, namespace = open_client(fresh_store.runtime_dir)
    write_and_insert(namespace, TOKENS)
    with namespace.match(TOKENS) as match:
        fresh_store.restart()
        assert wait_until(lambda: client.store_epoch is None)
        assert holds_tokens(namespace, TOKENS, match.pages)
        assert not namespace.wait_open(0)
        with pytest.raises(errors.StoreUnavailable):
            namespace.reserve(start_page=0, page_count=1)
    assert namespace.wait_open(LIMIT)
    client.close()


def test_a_view_delays_the_unmapping(fresh_store: RunningStore) -> None:
    """Memory of a dead store stays readable while a view of it exists."""
    before = memfd_mappings()
    client, namespace = open_client(fresh_store.runtime_dir)
    pages = write_and_insert(namespace, TOKENS)
    view = namespace.page(pages[0])
    tensor = namespace.extent_tensor(pages[0].extent_id)
    epoch, content = client.store_epoch, bytes(view)
    fresh_store.restart()
    assert wait_until(lambda: client.store_epoch not in (None, epoch))
    assert namespace.wait_open(LIMIT)
    assert memfd_mappings() == before + 2
    assert view == content
    del view
    assert tensor[pages[0].slot].numpy().tobytes() == content
    del tensor
    assert memfd_mappings() == before + 1
    client.close()


def test_a_store_that_hangs_is_a_miss_within_the_deadline(fresh_store: RunningStore) -> None:
    """A stopped store costs one request its deadline and later ones nothing. No pin remains."""
    client, namespace = open_client(fresh_store.runtime_dir, ClientConfig(call_timeout=1.0))
    insert_as_another(fresh_store)
    assert client.wait_connected(LIMIT)
    fresh_store.suspend()
    assert isinstance(namespace.match(TOKENS).failure, errors.StoreTimedOut)
    acquired = namespace.acquire(TOKENS, total_page_count=8)
    assert type(acquired.failure) is errors.StoreUnavailable
    assert not client.connected
    fresh_store.resume()
    assert client.wait_connected(LIMIT)
    assert wait_until(lambda: namespace.peek(TOKENS) == 16)
    assert client.flush(LIMIT)
    assert wait_until(lambda: nothing_held(client))
    client.close()


def test_lost_answers_are_undone(fresh_store: RunningStore) -> None:
    """The pins and slots of calls that timed out are released."""
    client, namespace = open_client(fresh_store.runtime_dir, ClientConfig(call_timeout=0.5))
    insert_as_another(fresh_store)
    for _ in range(5):
        fresh_store.suspend()
        namespace.acquire(TOKENS, total_page_count=8).release()
        fresh_store.resume()
        assert client.wait_connected(LIMIT)
    assert wait_until(lambda: client.flush(0) and nothing_held(client))
    client.close()


def test_a_lease_lost_by_a_stopped_process_is_replaced(fresh_store: RunningStore) -> None:
    """A worker stopped past its TTL keeps its pages, releases them, and gets a new lease."""
    with page_process(fresh_store.runtime_dir, "stopped", ttl=3.0) as worker:
        worker.ask("write", TOKENS)
        assert worker.ask("match", "all", TOKENS) == 16
        worker.signal(signal.SIGSTOP)
        assert wait_until(lambda: leases_by_state(fresh_store, "stopped") == [EXPIRED])
        worker.signal(signal.SIGCONT)
        assert wait_until(lambda: worker.ask("epoch") is None)
        assert len(worker.ask("check", "all")) == 4
        worker.ask("release", "all")
        assert wait_until(lambda: worker.ask("epoch") is not None)
        assert wait_until(lambda: leases_by_state(fresh_store, "stopped") == [ACTIVE])
        assert wait_until(lambda: len(worker.ask("stamps", TOKENS)) == 4)


@pytest.mark.parametrize("contiguous", [False, True])
def test_a_forked_child_has_no_client(fresh_store: RunningStore, *, contiguous: bool) -> None:
    """In a forked child every call raises ForkedClient and no page is mapped."""
    with page_process(fresh_store.runtime_dir, contiguous=contiguous) as worker:
        worker.ask("write", TOKENS)
        met = worker.ask("fork")
        assert met == ["ForkedClient"] * (len(met) - 1) + ["0"]
        assert len(worker.ask("stamps", TOKENS)) == 4


def test_close_ends_while_the_store_hangs(fresh_store: RunningStore) -> None:
    """A client of a stopped store closes, attached or not, with or without holds."""
    config = ClientConfig(call_timeout=LIMIT, close_timeout=0.2)
    idle, _ = open_client(fresh_store.runtime_dir, config)
    holding, namespace = open_client(fresh_store.runtime_dir, config)
    write_and_insert(namespace, TOKENS)
    match = namespace.match(TOKENS)
    fresh_store.suspend()
    attaching = Client(fresh_store.runtime_dir, config)
    attaching.start()
    assert not attaching.wait_connected(0.1)
    opening: Namespace = idle.namespace(IDENTITY, LAYOUT)
    assert closes(attaching)
    assert closes(idle)
    assert isinstance(opening.failure, errors.ClientClosed)
    assert closes(holding)
    assert holds_tokens(namespace, TOKENS, match.pages)
    match.release()


def test_close_ends_without_a_store(tmp_path: Path) -> None:
    """A client that never found a store closes, started or not."""
    assert closes(Client(tmp_path))
    client = Client(tmp_path)
    client.start()
    assert closes(client)
