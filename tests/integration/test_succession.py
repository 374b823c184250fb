"""Servers that go on with the memory of the one before them, with real holders and workers."""

import mmap
import os
import re
import signal
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kvstore.core.journal.rows import NamespaceRow, RemovalRow, Table
from kvstore.core.values.page_hash import namespace_digest
from kvstore.holder.holder_client import HolderClient, HolderConnection
from kvstore.succession.journal.durable_journal import DurableJournal
from kvstore.v1 import lease_pb2
from kvstore_client import Client, ClientConfig
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    IDENTITY,
    LAYOUT,
    LIMIT,
    SMALL_STORE,
    TOKENS,
    hits,
    holds_tokens,
    memfd_mappings,
    nothing_held,
    open_client,
    page_bytes,
    prompt,
    stamps_of,
    write_and_insert,
)
from processes.holder_folder import HolderFolder
from processes.page_worker import page_process
from processes.worker_process import WorkerProcess
from wire.attach_peer import AttachPeer
from wire.attached_worker import AttachedWorker

PAGES = 4
# Of two extents, so that descriptors can be swapped.
BOTH_EXTENTS = 4
MANY = [prompt(part) for part in range(2, 8)]


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[HolderFolder]:
    """Provides a holder's process."""
    with HolderFolder(tmp_path / "holder") as started:
        yield started


@pytest.fixture
def store(holder: HolderFolder) -> Iterator[RunningStore]:
    """Provides a store of 32 pages whose memory the holder keeps."""
    with running_store(*SMALL_STORE, *held_by(holder)) as running:
        yield running


@pytest.fixture
def worker_of(store: RunningStore) -> Iterator[Callable[[], WorkerProcess]]:
    """Provides a maker of worker processes on the store."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(page_process(store.runtime_dir))


def held_by(holder: HolderFolder) -> tuple[str, ...]:
    """Returns the settings of a server whose memory a holder keeps, which the test starts."""
    return ("--holder", str(holder.path), "--no-holder-start")


def epoch_of(store: RunningStore) -> int | None:
    """Returns the epoch of a store that serves."""
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        assert wait_until(lambda: client.connected)
        return client.store_epoch


def fill(store: RunningStore, *prompts: list[int]) -> int | None:
    """Inserts prompts from a client of this process, which leaves; returns the store's epoch."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        for tokens in prompts:
            write_and_insert(namespace, tokens)
        return client.store_epoch


def fill_all(store: RunningStore, holder: HolderFolder) -> int | None:
    """Inserts MANY so that all of it stays: the second extent comes while prompts are written."""
    fill(store, *MANY)
    assert wait_until(lambda: len(extents_in(holder)) == BOTH_EXTENTS)
    return fill(store, *MANY)


def found(store: RunningStore, tokens: list[int]) -> int:
    """Returns how many pages of a prompt a new client finds, all with the right bytes."""
    client, namespace = open_client(store.runtime_dir)
    with closing(client), namespace.match(tokens) as match:
        assert len(stamps_of(namespace, tokens, match.pages)) == match.page_count
        return match.page_count


def stats_of(store: RunningStore, look: Callable[[Client], bool]) -> bool:
    """Returns whether something comes to hold of a store, as a client sees it."""
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        return wait_until(lambda: client.connected and look(client))


def held_names(holder: HolderFolder) -> set[str]:
    """Returns the names that a holder has."""
    names = set()
    with closing(HolderConnection(holder.path)) as connection:
        for name, each in connection.descriptors():
            names.add(name)
            os.close(each.descriptor)
    return names


def extents_in(holder: HolderFolder) -> set[str]:
    """Returns the names of the extents and tables that a holder has."""
    return {name for name in held_names(holder) if name.startswith("extent-")}


def why_clean(store: RunningStore) -> str:
    """Returns the last line of the log about a clean start."""
    return [line for line in store.log.splitlines() if "clean_start" in line][-1]


def test_a_killed_server_s_pages_are_the_next_one_s(
    store: RunningStore, holder: HolderFolder
) -> None:
    """The next server has the same epoch, and all pages with their bytes, again and again."""
    epoch = fill_all(store, holder)
    for _ in range(2):
        store.restart()
        assert epoch_of(store) == epoch
        assert [found(store, each) for each in MANY] == [PAGES] * len(MANY)
    assert "store_recovered" in store.log
    assert "instance=3" in store.log


def test_the_next_server_inserts_and_evicts_in_the_same_memory(store: RunningStore) -> None:
    """More prompts than fit are written under the next server, and found under the one after."""
    fill(store, *MANY)
    store.restart()
    later = [prompt(part) for part in range(11, 18)]
    fill(store, *later)
    assert found(store, later[-1]) == PAGES
    store.restart()
    assert found(store, later[-1]) == PAGES
    assert found(store, MANY[0]) < PAGES


def test_pins_of_a_living_worker_stay(
    store: RunningStore, worker_of: Callable[[], WorkerProcess]
) -> None:
    """Pages that a worker reads are not recycled by the next server, however full it is."""
    worker = worker_of()
    worker.ask("write", TOKENS)
    assert worker.ask("match", "key", TOKENS) == PAGES * 4
    store.restart()
    for _ in range(2):
        fill(store, *MANY, *(prompt(part) for part in range(11, 17)))
    worker.ask("check", "key")
    assert found(store, TOKENS) == PAGES


def test_a_reservation_is_in_quarantine_until_its_worker_dies(
    store: RunningStore, worker_of: Callable[[], WorkerProcess]
) -> None:
    """Slots that a living worker may write are given to nobody. Its death frees them."""
    worker = worker_of()
    worker.ask("acquire", "key", TOKENS)
    worker.kill()
    other = worker_of()
    other.ask("acquire", "key", TOKENS)
    other.signal(signal.SIGSTOP)
    store.restart()

    def quarantined(client: Client) -> bool:
        return sum(a.quarantined_slot_count for a in client.admin.stats().arenas) == PAGES

    assert stats_of(store, quarantined)
    other.kill()
    assert stats_of(store, nothing_held)


def test_a_worker_that_dies_meanwhile_returns_all(
    store: RunningStore, worker_of: Callable[[], WorkerProcess]
) -> None:
    """Its death is seen by its pidfd, before the next server answers."""
    worker = worker_of()
    worker.ask("write", TOKENS)
    worker.ask("match", "pin", TOKENS)
    worker.ask("acquire", "reservation", prompt(2))
    store.kill()
    worker.kill()
    store.start()
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        assert wait_until(lambda: client.connected)
        assert nothing_held(client)
        assert client.admin.stats().namespaces[0].cached_page_count == PAGES


def test_a_worker_attaches_again_under_its_lease(
    store: RunningStore, request: pytest.FixtureRequest
) -> None:
    """Its credential and secret stay good, and its process keeps its number."""
    worker = AttachedWorker(store.runtime_dir)
    request.addfinalizer(worker.channel.close)
    request.addfinalizer(worker.peer.close)
    worker.grant()
    worker.bind()
    store.restart()
    worker.ask(worker.lease.RenewLease, worker.renew_request())
    with closing(AttachPeer()) as peer:
        peer.connect(store.runtime_dir / "attach.sock")
        assert peer.hello().welcome.store_epoch == worker.epoch
        assert peer.bind(worker.lease_id, worker.secret).HasField("bound")
        with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
            assert wait_until(lambda: client.connected)
            (lease,) = [
                each for each in client.admin.stats().leases if each.lease_id == worker.lease_id
            ]
            assert [each.connected for each in lease.processes] == [True]
    worker.ask(
        worker.lease.RevokeLease,
        lease_pb2.RevokeLeaseRequest(lease_id=worker.lease_id, store_epoch=worker.epoch),
    )


@pytest.mark.parametrize("end", [RunningStore.kill, RunningStore.stop])
def test_a_client_goes_on_with_what_it_holds(
    store: RunningStore, end: Callable[[RunningStore], int]
) -> None:
    """Its pages are mapped once, its pin stays, and its reservation is inserted at the next server.

    Nobody tells it to: the client finds the next server by itself.
    """
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        write_and_insert(namespace, TOKENS)
        mappings = memfd_mappings()
        with (
            namespace.match(TOKENS) as match,
            namespace.acquire(MANY[0], total_page_count=PAGES) as acquired,
        ):
            reservation = acquired.reservation
            assert reservation is not None
            for number, page in enumerate(reservation.pages):
                namespace.page(page)[:] = page_bytes(MANY[0], number)
            end(store)
            store.start()
            assert wait_until(lambda: hits(namespace))
            assert holds_tokens(namespace, TOKENS, match.pages)
            assert wait_until(lambda: client.admin.stats().pin_count == 1)
            reservation.insert(MANY[0][:-1], position=0, base=acquired.match)
        assert memfd_mappings() == mappings
        assert wait_until(lambda: client.flush(0) and nothing_held(client))
    assert found(store, MANY[0]) == PAGES
    assert "clean_start" not in store.log.partition("server_started")[2]


def test_sigterm_leaves_the_memory_to_the_next(
    store: RunningStore, holder: HolderFolder, worker_of: Callable[[], WorkerProcess]
) -> None:
    """The server ends at once, although a lease is open, and the next one goes on."""
    worker = worker_of()
    worker.ask("write", TOKENS)
    epoch = worker.ask("epoch")
    assert "owns" in holder.line()
    assert store.stop() == 0
    assert "drain_started" not in store.log
    assert "the owner leaves" in holder.line()
    store.start()
    assert epoch_of(store) == epoch
    assert found(store, TOKENS) == PAGES


def test_a_lease_that_its_worker_left_for_another_store_ends(store: RunningStore) -> None:
    """A server without the holder ran in between. No drain waits for the earlier lease."""
    client, namespace = open_client(store.runtime_dir, ClientConfig(ttl=2.0, call_timeout=LIMIT))
    with closing(client):
        write_and_insert(namespace, TOKENS)
        first = client.store_epoch
        with_holder = store._arguments
        for arguments in (SMALL_STORE, with_holder):
            assert store.stop() == 0
            store._arguments = arguments
            store.start()
            assert wait_until(lambda: client.connected)
        assert wait_until(lambda: client.store_epoch == first)
        assert wait_until(lambda: len(client.admin.leases()) == 1)
        assert wait_until(lambda: hits(namespace))
        os.kill(store.pid, signal.SIGINT)
        assert store._started().wait(LIMIT) == 0
        assert "leases_left=0" in store.log


def test_without_its_holder_a_server_drains_at_sigterm(
    store: RunningStore, holder: HolderFolder
) -> None:
    """Nothing can be left to the next one, so workers are told and may finish."""
    fill(store, TOKENS)
    holder.kill()
    assert store.stop() == 0
    assert "drain_finished" in store.log


def test_sigint_ends_the_memory(store: RunningStore, holder: HolderFolder) -> None:
    """The server drains, and its holder ends too."""
    fill(store, TOKENS)
    os.kill(store.pid, signal.SIGINT)
    assert store._started().wait(LIMIT) == 0
    assert holder.wait_exit() == 0
    assert "drain_finished" in store.log


def test_a_holder_that_dies_alone_loses_nothing(store: RunningStore, holder: HolderFolder) -> None:
    """The server goes on, and deposits everything with the next holder."""
    epoch = fill(store, TOKENS)
    holder.kill()
    assert found(store, TOKENS) == PAGES
    holder.start()
    assert wait_until(lambda: "holder_restored" in store.log)
    store.restart()
    assert epoch_of(store) == epoch
    assert found(store, TOKENS) == PAGES


def test_holder_and_server_that_die_together_lose_the_pages(
    store: RunningStore, holder: HolderFolder
) -> None:
    """The next server starts clean, and says so."""
    epoch = fill(store, TOKENS)
    store.suspend()
    holder.kill()
    store.kill()
    holder.start()
    store.start()
    assert epoch_of(store) != epoch
    assert found(store, TOKENS) == 0
    assert "no journal" in why_clean(store)


def test_a_server_without_its_holder_serves_and_deposits_later(tmp_path: Path) -> None:
    """A holder that comes later gets everything that was made meanwhile."""
    holder = HolderFolder(tmp_path / "holder")
    with running_store(*SMALL_STORE, *held_by(holder)) as store:
        assert "no holder answers" in why_clean(store)
        epoch = fill(store, TOKENS)
        with holder:
            assert wait_until(lambda: "holder_restored" in store.log)
            store.restart()
            assert epoch_of(store) == epoch
            assert found(store, TOKENS) == PAGES


def test_a_server_starts_a_holder(tmp_path: Path) -> None:
    """By default no one else has to start it, and it outlives the server."""
    folder = tmp_path / "holder"
    with running_store(*SMALL_STORE, "--holder", str(folder)) as store:
        epoch = fill(store, TOKENS)
        store.restart()
        assert epoch_of(store) == epoch
        os.kill(store.pid, signal.SIGINT)
        assert store._started().wait(LIMIT) == 0


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (("--prefix-cache-backend", "hash"), "prefix_cache_backend"),
        (("--tier1-bytes", SMALL_STORE[1]), "does not fit into --tier1-bytes"),
    ],
)
def test_with_other_settings_a_server_starts_clean(
    store: RunningStore, holder: HolderFolder, flags: tuple[str, ...], why: str
) -> None:
    """A setting that changes the meaning of the memory, or memory for less than is there."""
    epoch = fill_all(store, holder)
    store.kill()
    store._arguments += flags
    store.start()
    assert epoch_of(store) != epoch
    assert found(store, MANY[0]) == 0
    assert why in why_clean(store)
    # What is held is the new server's alone.
    fill(store, TOKENS)
    store.restart()
    assert found(store, TOKENS) == PAGES


def test_a_server_without_room_for_a_journal_serves(holder: HolderFolder) -> None:
    """It says so, and drains at SIGTERM, since nothing is left to the next one."""
    flags = ("--journal-bytes", "4096", "--metrics-listen", "127.0.0.1:0")
    with running_store(*SMALL_STORE, *held_by(holder), *flags) as store:
        fill(store, TOKENS)
        assert found(store, TOKENS) == PAGES
        assert "journal_refused" in store.log
        port = re.findall(r"http_listening.*port=(\d+)", store.log)[0]
        health = f"http://127.0.0.1:{port}/healthz"
        with urllib.request.urlopen(health, timeout=LIMIT) as answer:
            assert "the memory ends with the server" in answer.read().decode()
        assert store.stop() == 0
        assert "drain_finished" in store.log
    assert holder.wait_exit() == 0


def test_a_damaged_journal_is_a_clean_start(store: RunningStore, holder: HolderFolder) -> None:
    """No page is served from memory about which nothing can be trusted."""
    epoch = fill(store, TOKENS)
    store.kill()
    with closing(HolderConnection(holder.path)) as connection:
        for name, each in connection.descriptors():
            if name.startswith("journal-"):
                os.pwrite(each.descriptor, b"\xff" * 256, 0)
            os.close(each.descriptor)
    store.start()
    assert epoch_of(store) != epoch
    assert found(store, TOKENS) == 0
    assert "the journal is unusable" in why_clean(store)


@pytest.mark.parametrize(
    ("change", "goes_on"),
    [
        ("import kvstore as changed; changed.__version__ = '9.9.9'", True),
        (
            "import kvstore.succession.journal.store_row as changed; changed.JOURNAL_VERSION = 99",
            False,
        ),
    ],
    ids=["server", "journal"],
)
def test_another_version_goes_on_if_it_reads_the_journal(
    store: RunningStore, change: str, *, goes_on: bool
) -> None:
    """Another version of the journal is a clean start, on the way there and back."""
    epoch = fill(store, TOKENS)
    ours = store._program
    other = ["-c", f"{change}; import kvstore.server as server; server.run()"]
    for program in (other, ours):
        store.kill()
        store._program = program
        store.start()
        assert (epoch_of(store) == epoch) == goes_on
        assert found(store, TOKENS) == (PAGES if goes_on else 0)
        assert goes_on or "the journal is unusable: the journal has version" in why_clean(store)
        epoch = fill(store, TOKENS)
    assert goes_on == ("version=9.9.9" in store.log)


@pytest.mark.parametrize("ending", [".data", ".generations"])
def test_swapped_descriptors_are_a_clean_start(
    store: RunningStore, holder: HolderFolder, ending: str
) -> None:
    """Memory of one extent is never served as that of another, which may be another tenant's."""
    epoch = fill_all(store, holder)
    store.kill()
    with owner_of(holder) as client:
        carried = client.descriptors()
        names = [name for name in carried if name.endswith(ending)]
        assert len(names) == 2
        client.drop(names)
        swapped = dict(zip(names, reversed(names), strict=True))
        client.put({name: carried[swapped[name]].descriptor for name in names})
        client.give_up(0)
    store.start()
    assert epoch_of(store) != epoch
    assert "a memfd is /memfd:" in why_clean(store)


def test_a_missing_pidfd_is_a_clean_start(
    store: RunningStore, holder: HolderFolder, worker_of: Callable[[], WorkerProcess]
) -> None:
    """A process about which nothing is known may live, and write."""
    worker = worker_of()
    worker.ask("write", TOKENS)
    store.kill()
    with owner_of(holder) as client:
        client.drop([name for name in client.descriptors() if name.startswith("process-")])
        client.give_up(0)
    store.start()
    assert "is missing" in why_clean(store)


def owner_of(holder: HolderFolder) -> "closing[HolderClient]":
    """Returns a client that owns what a holder has, as a context manager."""
    client = HolderClient(holder.path)
    client.own(1, wait_seconds=LIMIT)
    return closing(client)


def test_a_server_that_is_killed_while_it_recovers_leaves_all_to_the_next(
    store: RunningStore, holder: HolderFolder
) -> None:
    """Servers that are killed at any instant of their start lose no page."""
    epoch = fill_all(store, holder)
    for number in range(6):
        store.kill()
        store.begin()
        wait_until(lambda: False, 0.1 * number)
    store.restart()
    assert epoch_of(store) == epoch
    assert [found(store, each) for each in MANY] == [PAGES] * len(MANY)


def test_a_stopped_server_keeps_its_memory(store: RunningStore, holder: HolderFolder) -> None:
    """It may continue and write, so no other server gets its memory, and the other says why."""
    epoch = fill(store, TOKENS)
    store.suspend()
    with (
        running_store(*SMALL_STORE, *held_by(holder), start=False) as other,
        pytest.raises(RuntimeError, match=f"pid {store.pid} owns"),
    ):
        other.start(timeout=LIMIT)
    store.resume()
    assert epoch_of(store) == epoch
    assert found(store, TOKENS) == PAGES


def test_removals_that_tier_3_has_not_done_are_done_first(
    tmp_path: Path, holder: HolderFolder
) -> None:
    """A server that is killed between a removal and its answer removes nothing less."""
    slab = ("--tier3-path", str(tmp_path / "slab"), "--tier3-bytes", "4MiB")
    settings = (*SMALL_STORE, *held_by(holder), *slab, "--tier3-write", "through")
    with running_store(*settings) as store:
        fill(store, TOKENS)
        assert stats_of(store, lambda client: kept_tokens(client) == len(TOKENS) - 1)
        store.kill()
        with owner_of(holder) as owner:
            write_removal(owner)
            owner.give_up(0)
        store.start()
        with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
            assert wait_until(lambda: client.connected)
            assert kept_tokens(client) == 0
        assert "store_recovered" in store.log


def kept_tokens(client: Client) -> int:
    """Returns how many tokens of TOKENS tier 3 has, in the only namespace."""
    [info] = client.admin.namespaces()
    return client.admin.peek_prefix(info.namespace_id, TOKENS).tier_3_token_count


def write_removal(owner: HolderClient) -> None:
    """Writes to the journal that all pages of the only namespace have to leave tier 3."""
    memories = {
        name: memoryview(mmap.mmap(each.descriptor, each.identity.size_bytes))
        for name, each in owner.descriptors().items()
        if name.startswith("journal-")
    }
    journal = DurableJournal.open(memories)
    [row] = journal.contents().rows[Table.NAMESPACES].values()
    assert isinstance(row, NamespaceRow)
    digest = namespace_digest(row.tenant, row.identity, row.layout)
    journal.put(Table.REMOVALS, 7, RemovalRow(7, row.namespace_id, digest, None))


def test_old_memory_of_a_living_worker_is_not_allocated_twice(
    store: RunningStore, holder: HolderFolder, worker_of: Callable[[], WorkerProcess]
) -> None:
    """After a clean start it counts as taken until the worker is dead, also for later servers."""
    worker = worker_of()
    fill_all(store, holder)
    worker.ask("match", "key", MANY[0])
    worker.signal(signal.SIGSTOP)
    store.kill()
    store._arguments += ["--prefix-cache-backend", "hash"]
    store.start()
    assert "memory_left_behind" in store.log
    store.restart()
    with Client(store.runtime_dir, ClientConfig(call_timeout=LIMIT)) as client:
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert wait_until(lambda: "POOL_EXHAUSTED" in str(namespace.failure))
        assert extents_in(holder) == set()
        worker.kill()
        assert namespace.wait_open(LIMIT)
    assert "memory_left_behind_is_free" in store.log
    fill(store, TOKENS)
    assert found(store, TOKENS) == PAGES


def test_a_clean_start_drops_what_was_there(store: RunningStore, holder: HolderFolder) -> None:
    """The holder keeps no memory that nobody can use."""
    fill_all(store, holder)
    before = extents_in(holder)
    store.kill()
    store._arguments += ["--prefix-cache-backend", "hash"]
    store.start()
    assert not before & held_names(holder)
