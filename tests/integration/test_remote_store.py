"""The remote store on real servers: killed, stopped, overfilled, rolled back and hostile."""

import signal
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

import pytest
from page_stores.numbered_pages import LIMIT, NAMESPACE, PAGE_BYTES, key
from page_stores.remote_rig import wait_until

from kvstore.remote.liveness.breaker import MOST_FAILURES
from kvstore.remote.objects.folder_engine import FolderEngine
from kvstore.remote.remote_use import Refusal
from kvstore.remote.valkey.cluster.cluster_slots import slot_of_name
from kvstore.storage.page_store import PageKey, PageWrite, StoreState
from remote.engine_host import PATIENT, EngineHost
from remote.valkey_groups import ValkeyCluster, ValkeySentinel, valkey_cluster
from remote.valkey_server import PASSWORD, ValkeyServer, valkey_server


@pytest.fixture
def folder() -> Iterator[Path]:
    """Provides a folder with a path that is short enough for a socket."""
    with TemporaryDirectory(prefix="kv-") as name:
        yield Path(name)


@pytest.fixture
def server(folder: Path) -> Iterator[ValkeyServer]:
    """Provides a server."""
    with valkey_server(folder) as running:
        yield running


@pytest.fixture
def a(server: ValkeyServer, folder: Path) -> Iterator[EngineHost]:
    """Provides a host."""
    host = EngineHost(server.engine, folder / "a")
    yield host
    host.close()


@pytest.fixture
def b(server: ValkeyServer, folder: Path) -> Iterator[EngineHost]:
    """Provides another host on the same server."""
    host = EngineHost(server.engine, folder / "b")
    yield host
    host.close()


def test_hosts_share_pages_and_removals(a: EngineHost, b: EngineHost) -> None:
    """Each page has its own bytes, and a removal takes them from both."""
    assert all(a.write(*range(20)))
    assert b.look(*range(30)) == 20
    assert b.finds(*range(30)) == list(range(20))
    assert a.pages.remove(3)
    assert [a.look(0), b.look(0)] == [0, 0]
    b.settle()
    assert b.heard == [NAMESPACE]
    assert all(b.write(*range(5)))
    assert a.finds(*range(20)) == list(range(5))


def test_hosts_share_a_folder(tmp_path: Path) -> None:
    """A file system keeps no deadlines, and serves the same."""
    folder = tmp_path / "shared"
    folder.mkdir()
    a, b = (EngineHost(lambda: FolderEngine(folder), tmp_path / each) for each in "ab")
    try:
        assert all(a.write(*range(4)))
        assert b.look(*range(6)) == 4
        assert b.finds(*range(6)) == list(range(4))
        assert b.pages.remove(0)
        assert [a.look(0), b.look(0)] == [0, 0]
    finally:
        a.close()
        b.close()


def test_a_killed_server_is_refilled(server: ValkeyServer, a: EngineHost, b: EngineHost) -> None:
    """It comes back empty, which is no removal."""
    assert all(a.write(*range(4)))
    assert b.look(0) == 1
    server.kill()
    for host in (a, b):
        host.wait_for(StoreState.AWAY)
        began = monotonic()
        assert [host.look(0), host.finds(0)] == [0, []]
        assert host.pages.begin(9) is None
        assert monotonic() - began < 1.0
    server.start()
    for host in (a, b):
        wait_until(lambda host=host: host.store.state is StoreState.OPEN)  # type: ignore[misc]
    assert b.look(0) == 0
    assert all(a.write(*range(4)))
    assert b.look(*range(4)) == 4
    assert b.finds(*range(4)) == list(range(4))
    assert [a.heard, b.heard] == [[], []]
    assert a.store.remote_use().breaker_opened >= 1


def test_a_stopped_server_costs_a_deadline_a_few_times(server: ValkeyServer, folder: Path) -> None:
    """Then nothing, until it goes on."""
    settings = replace(PATIENT, timeout_seconds=0.3, read_seconds=1.0)
    host = EngineHost(server.engine, folder / "c", settings=settings)
    try:
        assert all(host.write(*range(4)))
        server.send(signal.SIGSTOP)
        slow = 0
        for number in range(40):
            began = monotonic()
            host.look(100 + number)
            slow += monotonic() - began > 0.25
        assert slow <= 6
        assert host.store.state is StoreState.AWAY
        server.send(signal.SIGCONT)
        wait_until(lambda: host.store.state is StoreState.OPEN)
        assert host.finds(*range(4)) == list(range(4))
    finally:
        server.send(signal.SIGCONT)
        host.close()


def test_an_overfilled_server_serves_no_wrong_page(folder: Path) -> None:
    """It evicts pages while both hosts write and read, and spares the revisions."""
    with valkey_server(folder, "maxmemory 16mb") as server:
        a, b = (EngineHost(server.engine, folder / each) for each in "ab")
        try:
            for number in range(0, 4000, 100):
                assert all(a.write(*range(number, number + 100)))
                b.finds(*range(max(number - 100, 0), number + 100))
            stats = server.admin("INFO", "stats")
            assert isinstance(stats, dict)
            assert stats["evicted_keys"] > 0
            assert b.store.use().counters.read_pages > 1000
            assert b.store.use().counters.corrupt_pages == 0
            assert a.store.remote_use().revisions_lost == 0
            assert [a.heard, b.heard] == [[], []]
        finally:
            a.close()
            b.close()


def test_a_restored_backup_brings_no_removed_page_back(
    server: ValkeyServer, a: EngineHost, b: EngineHost
) -> None:
    """The file has the revision of before, and its pages (A3)."""
    assert all(a.write(*range(4)))
    assert b.look(0) == 1
    server.admin("SAVE")
    assert a.pages.remove(0)
    b.look(0)
    b.settle()
    server.kill()
    a.wait_for(StoreState.AWAY)
    b.wait_for(StoreState.AWAY)
    server.start()
    wait_until(lambda: a.store.state is b.store.state is StoreState.OPEN)
    names = server.admin("KEYS", "kv1/*")
    assert isinstance(names, list)
    assert len(names) >= 4, "the pages of before are there"
    for host in (a, b):
        assert host.look(*range(4)) == 0
        assert host.finds(*range(4)) == []
        host.settle()
        assert host.look(*range(4)) == 0
        assert host.finds(*range(4)) == []


def test_a_failover_brings_no_removed_page_back(folder: Path) -> None:
    """The replica was stopped before the removal, and is promoted afterwards (A3)."""
    group = ValkeySentinel(folder)
    a, b = (EngineHost(group.engine, folder / each) for each in ("a", "b"))
    try:
        assert all(a.write(*range(4)))
        assert b.look(0) == 1
        group.wait_until_replicated()
        primary = group.primary()
        [replica] = [each for each in group.servers if each is not primary]
        wait_until(lambda: len(replica.admin("KEYS", "kv1/*")) >= 4)  # type: ignore[arg-type]
        replica.send(signal.SIGSTOP)
        try:
            assert a.pages.remove(0)
            b.look(0)
            b.settle()
            primary.kill()
        finally:
            replica.send(signal.SIGCONT)
        wait_until(lambda: group.primary() is replica)
        for host in (a, b):
            host.wait_for(StoreState.OPEN)
        a.settle()
        for host in (a, b):
            assert host.look(*range(4)) == 0
            assert host.finds(*range(4)) == []
    finally:
        a.close()
        b.close()
        group.kill()


def test_a_removal_while_the_server_is_away_outlives_its_host(
    server: ValkeyServer, a: EngineHost, b: EngineHost
) -> None:
    """The host ends before the server is back, with the pages of before (A7)."""
    assert all(a.write(*range(4)))
    server.admin("SAVE")
    server.kill()
    a.wait_for(StoreState.AWAY)
    gone: Future[bool] = Future()
    a.store.remove([key(0)], gone.set_result)
    a.close()
    assert not gone.result(LIMIT)
    a.open()
    server.start()
    wait_until(lambda: a.store.state is b.store.state is StoreState.OPEN)
    a.settle()
    assert [a.look(*range(4)), b.look(*range(4))] == [0, 0]
    assert [a.finds(*range(4)), b.finds(*range(4))] == [[], []]


def test_an_administrator_can_serve_no_wrong_page(
    server: ValkeyServer, a: EngineHost, b: EngineHost
) -> None:
    """Pages that were swapped, cut, replayed or invented are misses."""
    assert all(a.write(*range(8)))
    names = server.admin("KEYS", "kv1/*")
    assert isinstance(names, list)
    values = {name: server.admin("GET", name) for name in names}
    one, two, three, four = names[:4]
    server.admin("SET", one, values[two], "PX", 10**7)  # type: ignore[arg-type]
    server.admin("SET", two, values[one], "PX", 10**7)  # type: ignore[arg-type]
    server.admin("SET", three, values[three][:100], "PX", 10**7)  # type: ignore[index]
    server.admin("SET", four, b"x" * len(values[four]), "PX", 10**7)  # type: ignore[arg-type]
    assert len(b.finds(*range(8))) == len(names) - 4
    counts = b.store.remote_use().rejected_pages
    assert sum(counts.values()) == 4
    assert a.pages.remove(0)
    for name, value in values.items():
        server.admin("SET", name, value, "PX", 10**7)  # type: ignore[arg-type]
    assert [a.finds(*range(8)), b.finds(*range(8))] == [[], []]


def test_a_rotated_password_costs_no_restart(server: ValkeyServer, a: EngineHost) -> None:
    """The store says why it is away, and goes on once its file has the new one (E27)."""
    assert all(a.write(0))
    server.admin("ACL", "SETUSER", "kvstore", "resetpass", ">another")
    server.admin("CLIENT", "KILL", "USER", "kvstore")
    a.wait_for(StoreState.AWAY)
    wait_until(lambda: "WRONGPASS" in a.store.remote_use().why)
    server.write_credential("another")
    wait_until(lambda: a.store.state is StoreState.OPEN)
    assert a.finds(0) == [0]
    server.write_credential(PASSWORD)


def test_an_engine_that_evicts_revisions_loses_pages_alone(folder: Path) -> None:
    """With allkeys-lru they are evicted too: it is counted, and nobody drops its memory (A9)."""
    with valkey_server(folder, "maxmemory 16mb", "maxmemory-policy allkeys-random") as server:
        a, b = (EngineHost(server.engine, folder / each, settings=PATIENT) for each in "ab")
        try:
            for number in range(0, 6000, 100):
                a.write(*range(number, number + 100))
                b.finds(*range(max(number - 100, 0), number + 100))
                if a.store.remote_use().revisions_lost + b.store.remote_use().revisions_lost:
                    break
            assert a.store.remote_use().revisions_lost + b.store.remote_use().revisions_lost
            assert [a.heard, b.heard] == [[], []]
        finally:
            a.close()
            b.close()


def test_a_dead_node_of_a_cluster_takes_its_shards_alone(folder: Path) -> None:
    """The pages of the other nodes are found and written, and the store stays open (A5)."""
    cluster = ValkeyCluster(folder, 3, with_replicas=False)
    settings = replace(PATIENT, timeout_seconds=1.0)
    host = EngineHost(cluster.engine, folder / "a", settings=settings)
    try:
        keys = [key(each)._replace(segment=key(each).digest) for each in range(60)]
        dead = cluster.nodes[0]
        # Without this, nodes that are left refuse everything.
        for node in cluster.nodes:
            node.admin("CONFIG", "SET", "cluster-require-full-coverage", "no")
        assert _write_apart(host, keys) == [True] * 60
        dead.kill()
        for _ in range(3):
            found = sum(_finds_apart(host, each) for each in keys)
        assert 30 <= found < 50
        assert host.store.state is StoreState.OPEN
        assert host.store.remote_use().refused_writes[Refusal.QUEUE] == 0
        gone: Future[bool] = Future()
        host.store.remove([keys[0]], gone.set_result)
        assert [_finds_apart(host, each) for each in keys] == [0] * 60
        dead.start()
        assert gone.result(LIMIT)
    finally:
        host.close()
        cluster.kill()


def test_a_node_without_answers_closes_nothing_for_the_others(folder: Path) -> None:
    """Calls that need it alone wait for it a few times, and the tier stays open."""
    with valkey_cluster(folder) as cluster:
        settings = replace(PATIENT, timeout_seconds=1.0, read_seconds=2.0)
        host = EngineHost(cluster.engine, folder / "a", settings=settings)
        try:
            keys = [key(each)._replace(segment=key(each).digest) for each in range(60)]
            assert _write_apart(host, keys) == [True] * 60
            hung = cluster.nodes[0]
            theirs = [each for each in keys if _node_of(cluster, host, each) is hung]
            others = [each for each in keys if each not in theirs]
            # Its replica must not take over.
            cluster.replica_of(hung).kill()
            hung.process.stop()
            began = monotonic()
            for _ in range(5):
                assert [_finds_apart(host, each) for each in theirs] == [0] * len(theirs)
            # Each look would take a second.
            assert monotonic() - began < 2 * MOST_FAILURES * settings.timeout_seconds
            assert [_finds_apart(host, each) for each in others] == [1] * len(others)
            use = host.store.remote_use()
            assert (use.state, use.breaker_opened) == (StoreState.OPEN, 0)
            assert use.nodes_away == (f"127.0.0.1:{hung.port}",)
            hung.process.resume()
            wait_until(lambda: [_finds_apart(host, each) for each in keys] == [1] * 60)
            assert host.store.remote_use().nodes_away == ()
        finally:
            host.close()


def test_a_moved_slot_costs_no_page(folder: Path) -> None:
    """Pages are found and written while their slot moves, and right after it."""
    with valkey_cluster(folder, with_replicas=False) as cluster:
        host = EngineHost(cluster.engine, folder / "a")
        try:
            numbers = range(8)
            assert all(host.write(*numbers))
            control = host.store._names.control(NAMESPACE, host.store._page_names.shard(key(0)))
            old = cluster.primary_of(control)
            names = old.admin("CLUSTER", "GETKEYSINSLOT", slot_of_name(control), 100)
            assert isinstance(names, list)
            new = next(node for node in cluster.nodes if node is not old)
            cluster.begin_move(control, old, new)
            cluster.move(names[: len(names) // 2], old, new)
            assert host.look(*numbers) == len(numbers)
            assert host.finds(*numbers) == list(numbers)
            assert all(host.write(*range(8, 12)))
            left = old.admin("CLUSTER", "GETKEYSINSLOT", slot_of_name(control), 100)
            assert isinstance(left, list)
            cluster.move(left, old, new)
            cluster.finish_move(control, new)
            assert host.finds(*range(12)) == list(range(12))
            assert host.look(*range(12)) == 12
            assert host.heard == []
        finally:
            host.close()


def _node_of(cluster: ValkeyCluster, host: EngineHost, page: PageKey) -> ValkeyServer:
    """Returns the primary that has a page's shard."""
    shard = host.store._page_names.shard(page)
    return cluster.primary_of(host.store._names.control(page.namespace, shard))


def _finds_apart(host: EngineHost, page: PageKey) -> int:
    with host.store._worth._mutex:
        host.store._worth._missing.clear()
    return host.store.look([page], monotonic() + LIMIT)


def _write_apart(host: EngineHost, pages: list[PageKey]) -> list[bool]:
    """Writes pages that are their own segments."""
    host.store.there(pages)
    results = []
    for each in pages:
        done: Future[bool] = Future()
        page = PageWrite(each, NAMESPACE, 1)
        content = [memoryview(bytes(PAGE_BYTES))]
        assert host.store.write(page, content, done.set_result, checksum=None)
        results.append(done.result(LIMIT))
    return results


def test_removals_of_fifty_namespaces_take_seconds(a: EngineHost) -> None:
    """On a real server."""
    gone: Future[bool] = Future()
    began = monotonic()
    a.store.remove([PageKey(bytes([each]) * 32, b"") for each in range(50)], gone.set_result)
    assert gone.result(LIMIT)
    assert monotonic() - began < LIMIT / 2
