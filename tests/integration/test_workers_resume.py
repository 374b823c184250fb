"""Workers that work on through the ends of their servers, with real holders and processes."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from kvstore.v1 import lease_pb2
from kvstore_client import connect_admin
from kvstore_client.testing import RunningStore, running_store, wait_until
from pages.stamped_pages import (
    LIMIT,
    SMALL_STORE,
    TOKENS,
    nothing_held,
    open_client,
    page_count,
    prompt,
    stamps_of,
)
from processes.holder_folder import HolderFolder
from processes.page_worker import page_process
from processes.worker_process import WorkerProcess

KILLS = 5
OWN = prompt(2)
MANY = [prompt(part) for part in range(3, 9)]
# More than fit, so that workers write and evict all the time.
LOAD = [prompt(part) for part in range(30, 42)]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunningStore]:
    """Provides a store of 32 pages whose memory a holder keeps."""
    with HolderFolder(tmp_path / "holder") as holder:
        held_by = ("--holder", str(holder.path), "--no-holder-start")
        with running_store(*SMALL_STORE, *held_by) as running:
            yield running


@pytest.fixture
def worker_of(store: RunningStore) -> Iterator[Callable[..., WorkerProcess]]:
    """Provides a maker of worker processes on the store."""
    with ExitStack() as stack:
        yield lambda name="worker", **settings: stack.enter_context(
            page_process(store.runtime_dir, name, **settings)
        )


def mappings_of(worker: WorkerProcess) -> list[str]:
    """Returns the mappings of a worker's extents and tables: addresses, inodes and names."""
    maps = Path(f"/proc/{worker.pid}/maps").read_text(encoding="utf-8")
    return [line for line in maps.splitlines() if "/memfd:" in line]


def leases(store: RunningStore) -> list[lease_pb2.LeaseInfo]:
    """Returns the leases of a store."""
    with connect_admin(store.runtime_dir) as admin:
        return list(admin.leases())


def all_have_inserted(store: RunningStore) -> bool:
    """Returns whether the present server has seen a hit and an insert of each worker."""
    counters = [each.counters for each in leases(store)]
    return all(each.matched_token_count and each.inserted_page_count for each in counters)


def clean_starts(store: RunningStore) -> int:
    """Returns how often the servers began without the memory of the one before."""
    return store.log.count("clean_start")


def grown(worker: WorkerProcess) -> bool:
    """Returns whether a worker has mapped all memory that the store may have."""
    worker.ask("churn", MANY, 1)
    return len(mappings_of(worker)) == 4


def back(worker: WorkerProcess, epoch: int) -> bool:
    """Returns whether a worker uses the store again, waiting for that."""
    return wait_until(lambda: worker.ask("epoch") == epoch)


def test_a_worker_works_on_through_five_kills(
    store: RunningStore, worker_of: Callable[..., WorkerProcess]
) -> None:
    """Pins, an open reservation and mappings stay, and what dead workers held is returned."""
    worker = worker_of()
    assert wait_until(lambda: grown(worker))
    worker.ask("write", TOKENS)
    assert worker.ask("match", "pin", TOKENS) == 16
    assert worker.ask("acquire", "reservation", OWN) == 0
    slots = worker.ask("fill", "reservation")
    epoch, mappings = worker.ask("epoch"), mappings_of(worker)
    [lease] = leases(store)
    for number in range(KILLS):
        victim = worker_of(f"victim {number}")
        assert victim.ask("match", "pin", TOKENS) == 16
        victim.ask("acquire", "reservation", prompt(20 + number))
        store.kill()
        victim.kill()
        written = worker.ask("check", "pin")
        store.start()
        assert back(worker, epoch), store.log
        assert worker.ask("check", "pin") == written
        assert worker.ask("own_pages_are_untouched", "reservation")
        assert mappings_of(worker) == mappings
        [now] = leases(store)
        assert now.lease_id == lease.lease_id
        assert (now.pin_count, now.reservation_count) == (1, 1)
        assert (now.reserved_slot_count, now.quarantined_slot_count) == (len(slots), 0)
    assert worker.ask("insert", "reservation", 0, page_count(OWN)) == (slots, len(slots))
    for key in ("pin", "reservation"):
        worker.ask("release", key)
    client, namespace = open_client(store.runtime_dir)
    with closing(client):
        for tokens in (TOKENS, OWN):
            with namespace.match(tokens) as match:
                assert len(stamps_of(namespace, tokens, match.pages)) == page_count(tokens)
        assert client.flush(LIMIT)
        assert nothing_held(client)
    assert mappings_of(worker) == mappings
    assert clean_starts(store) == 1


def test_workers_that_write_and_read_meanwhile_see_right_pages(
    store: RunningStore, worker_of: Callable[..., WorkerProcess]
) -> None:
    """Workers under load go on with each next server, and leave nothing behind."""
    workers = [worker_of(f"worker {number}", ttl=LIMIT) for number in range(2)]
    assert all(wait_until(lambda each=each: grown(each)) for each in workers)
    mappings = [mappings_of(each) for each in workers]
    for each in workers:
        each.tell("churn", LOAD, 0)
    for _ in range(KILLS):
        store.restart()
        assert wait_until(lambda: all_have_inserted(store))
    tallies = [each.stop() for each in workers]
    assert all(tally["hits"] and tally["published"] for tally in tallies), tallies
    [epoch] = {worker.ask("epoch") for worker in workers if back(worker, worker.ask("epoch"))}
    assert epoch is not None
    assert [mappings_of(each) for each in workers] == mappings
    assert len(leases(store)) == len(workers)
    client, _ = open_client(store.runtime_dir)
    with closing(client):
        assert wait_until(lambda: nothing_held(client))
    assert clean_starts(store) == 1


def test_a_server_that_yields_is_followed_at_once(
    store: RunningStore, worker_of: Callable[..., WorkerProcess]
) -> None:
    """After SIGTERM the worker's lease, holds and memory are the next server's."""
    worker = worker_of()
    assert wait_until(lambda: grown(worker))
    worker.ask("write", TOKENS)
    assert worker.ask("match", "pin", TOKENS) == 16
    epoch, mappings = worker.ask("epoch"), mappings_of(worker)
    assert store.stop() == 0
    store.start()
    assert back(worker, epoch)
    assert worker.ask("check", "pin")
    assert mappings_of(worker) == mappings
    assert worker.ask("peek", TOKENS) == 16


def test_each_rank_of_a_lease_goes_on(
    store: RunningStore, worker_of: Callable[..., WorkerProcess]
) -> None:
    """The processes of one lease attach again, each by itself, and read the owner's pages."""
    owner = worker_of("owner")
    assert wait_until(lambda: grown(owner))
    ranks = [worker_of(f"rank {n}", join=owner.ask("share_lease")) for n in range(2)]
    owner.ask("write", TOKENS)
    assert owner.ask("match", "pin", TOKENS) == 16
    pages = owner.ask("matched_pages", "pin")
    epoch = owner.ask("epoch")
    store.restart()
    assert all(back(each, epoch) for each in (owner, *ranks))
    [lease] = leases(store)
    assert {each.pid for each in lease.processes if each.connected} == {
        each.pid for each in (owner, *ranks)
    }
    written = owner.ask("check", "pin")
    assert [each.ask("stamps_at", TOKENS, pages) for each in ranks] == [written] * 2
    assert wait_until(lambda: owner.ask("acquire", "more", OWN) == 0)
