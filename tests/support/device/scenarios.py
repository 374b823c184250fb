"""Scenarios for pages in a device's memory: real stores, real processes.

Each scenario starts a store on ``cuda:0`` and workers on it. ``torch_device`` is what
torch calls the device there: "cuda", or "cpu" where files stand in for one.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from device.pages import EXTENT_BYTES, LAYOUT, SLOTS, page_count, prompt
from device.process import device_process
from device.uid_by_environment import PROGRAM, as_uid
from kvstore.v1 import store_pb2
from kvstore_client import connect_admin
from kvstore_client.testing import RunningStore, running_store, wait_until
from processes.worker_process import WorkerProcess

LIMIT = 60.0
TOKENS = prompt(1, 2)
PAGES = page_count(TOKENS)
LONGER = prompt(1, 2, 3)
OTHERS = prompt(4, 5)


@contextmanager
def store_and_workers(
    count: int,
    *settings: str,
    extent_bytes: int = EXTENT_BYTES,
    config: Mapping[str, Any] | None = None,
) -> Iterator[tuple[RunningStore, list[WorkerProcess]]]:
    """Runs a store of two extents, and workers whose namespaces are open.

    ``settings`` are further ones of the store, ``config`` has settings of the workers' clients.
    """
    sizes = ("--extent-bytes", str(extent_bytes), "--tier1-bytes", str(2 * extent_bytes))
    with ExitStack() as stack:
        store = stack.enter_context(running_store("--device", "cuda:0", *sizes, *settings))
        workers = [
            device_process(store.runtime_dir, wait_open=False, config=config) for _ in range(count)
        ]
        for each in workers:
            stack.enter_context(each)
        for each in workers:
            assert each.ask("wait_open")
        yield store, workers


@contextmanager
def store_of_tenants() -> Iterator[tuple[RunningStore, Callable[[int], WorkerProcess]]]:
    """Runs a store of two extents, and gives a starter of workers of a uid each."""
    sizes = ("--extent-bytes", str(EXTENT_BYTES), "--tier1-bytes", str(2 * EXTENT_BYTES))
    with ExitStack() as stack:
        store = stack.enter_context(running_store("--device", "cuda:0", *sizes, program=PROGRAM))

        def worker(uid: int) -> WorkerProcess:
            with as_uid(uid):
                return stack.enter_context(device_process(store.runtime_dir, wait_open=False))

        yield store, worker


def stats(store: RunningStore) -> store_pb2.GetStatsResponse:
    """Returns the store's statistics."""
    with connect_admin(store.runtime_dir) as admin:
        return admin.stats()


def slots(store: RunningStore, state: str) -> int:
    """Returns how many slots are in a state."""
    return sum(getattr(each, f"{state}_slot_count") for each in stats(store).arenas)


def workers_share_pages_in_place(torch_device: str) -> None:
    """One worker's pages are another's at the same place, and the second goes on from there."""
    with store_and_workers(2) as (store, (one, two)):
        pages = one.ask("write", TOKENS)
        assert len(pages) == PAGES
        assert two.ask("hold", TOKENS) == len(TOKENS) - 1
        assert two.ask("reads_right")
        assert two.ask("device_type") == torch_device
        assert two.ask("bytes_raise")
        two.ask("release")
        assert two.ask("write", LONGER)[:PAGES] == pages
        assert one.ask("hold", LONGER) == len(LONGER) - 1
        assert one.ask("reads_right")
        assert [each.ask("opened") for each in (one, two)] == [1, 1]
        with connect_admin(store.runtime_dir) as admin:
            (extent,) = admin.capabilities().extents
        assert (len(extent.cuda_ipc.device_uuid), extent.cuda_ipc.ipc_handle) == (16, b"")
        one.ask("release")


def a_source_page_is_copied_on_the_device(torch_device: str) -> None:
    """A page that a sequence shares a part of is copied from another worker's into its own."""
    with store_and_workers(2) as (_, (one, two)):
        one.ask("write", TOKENS)
        parting = 2 * LAYOUT.page_tokens + 5
        changed = [*TOKENS[:parting], *(token + 1 for token in TOKENS[parting:])]
        assert two.ask("copy_source", changed) == (5, True)
        assert two.ask("write", changed)[:2] == one.ask("write", TOKENS)[:2]
        assert two.ask("hold", changed) == len(changed) - 1
        assert (two.ask("reads_right"), two.ask("device_type")) == (True, torch_device)
        two.ask("release")


def an_arena_grows_on_the_device(torch_device: str) -> None:
    """Extents that the store adds are mapped by every worker, each by its own handle."""
    with store_and_workers(2) as (_, (one, two)):
        sequences = [prompt(number) for number in range(10, 10 + SLOTS // 4 + 4)]
        places = {page.extent_id for tokens in sequences for page in one.ask("write", tokens)}
        assert one.ask("wait_opened", 2)
        assert two.ask("wait_opened", 2)
        # Those that went for later ones, while the second extent was not there yet.
        places |= {page.extent_id for tokens in sequences for page in one.ask("write", tokens)}
        assert len(places) == 2
        assert two.ask("wait_matched", sequences[-1])
        for tokens in sequences:
            assert two.ask("hold", tokens) == len(tokens) - 1
            assert (two.ask("reads_right"), two.ask("device_type")) == (True, torch_device)
            two.ask("release")


def a_killed_writer_leaves_what_it_published(torch_device: str) -> None:
    """After SIGKILL published pages are read on; what was not inserted is nobody's, and returns."""
    with store_and_workers(2) as (store, (one, two)):
        one.ask("write", TOKENS)
        assert two.ask("hold", TOKENS) == len(TOKENS) - 1
        assert one.ask("acquire", OTHERS) == 0
        assert slots(store, "reserved") == page_count(OTHERS)
        one.kill()
        assert wait_until(lambda: slots(store, "reserved") == 0)
        assert (two.ask("reads_right"), two.ask("peek", OTHERS)) == (True, 0)
        two.ask("write", OTHERS)
        with device_process(store.runtime_dir) as three:
            for tokens in (TOKENS, OTHERS):
                assert three.ask("hold", tokens) == len(tokens) - 1
                assert (three.ask("reads_right"), three.ask("device_type")) == (True, torch_device)
                three.ask("release")
        two.ask("release")


def pages_outlive_their_store(torch_device: str) -> None:
    """A store killed, then one stopped: what is held is read on, then unmapped for the next."""
    with store_and_workers(1) as (store, (worker,)):
        for end in (store.kill, store.stop):
            worker.ask("write", TOKENS)
            assert worker.ask("hold", TOKENS) == len(TOKENS) - 1
            end()
            assert (worker.ask("reads_right"), worker.ask("device_type")) == (True, torch_device)
            worker.ask("release")
            assert worker.ask("wait_opened", 0)
            store.start()
            assert worker.ask("wait_open")
            assert (worker.ask("peek", TOKENS), worker.ask("opened")) == (0, 1)


def a_view_outlives_its_store(torch_device: str) -> None:
    """A view that is kept stays what it was beside the next store, and is unmapped at last."""
    with store_and_workers(2) as (store, (worker, other)):
        worker.ask("write", TOKENS)
        worker.ask("hold", TOKENS)
        assert worker.ask("device_type") == torch_device
        worker.ask("keep_view")
        seen = worker.ask("view_sum")
        store.kill()
        worker.ask("release")
        store.start()
        assert other.ask("wait_open")
        other.ask("write", OTHERS)
        assert worker.ask("wait_open_or_told")
        assert worker.ask("view_sum") == seen
        worker.ask("drop_view")
        assert worker.ask("wait_open")
        assert worker.ask("wait_opened", 1)
        assert worker.ask("hold", OTHERS) == len(OTHERS) - 1
        assert worker.ask("reads_right")
        worker.ask("release")


def removed_pages_stay_for_their_reader(torch_device: str) -> None:
    """Pages that an operator evicts are detached: nobody's to write until the reader is done."""
    with store_and_workers(2) as (store, (reader, writer)):
        writer.ask("write", TOKENS)
        assert reader.ask("hold", TOKENS) == len(TOKENS) - 1
        with connect_admin(store.runtime_dir) as admin:
            (namespace,) = admin.namespaces()
            admin.evict_prefix(namespace.namespace_id, TOKENS[: LAYOUT.page_tokens])
        assert (writer.ask("peek", TOKENS), slots(store, "detached")) == (0, PAGES)
        for number in range(100, 100 + SLOTS // 2):
            writer.ask("write", prompt(number))
        assert (reader.ask("reads_right"), reader.ask("device_type")) == (True, torch_device)
        reader.ask("release")
        assert wait_until(lambda: slots(store, "detached") == 0)


def one_process_opens_a_handle_once(torch_device: str) -> None:
    """A second client of a process shares the mapping, and its end does not unmap it."""
    with store_and_workers(1) as (store, (worker,)):
        worker.ask("write", TOKENS)
        assert worker.ask("second_client", str(store.runtime_dir)) == 1
        assert worker.ask("hold", TOKENS) == len(TOKENS) - 1
        assert (worker.ask("reads_right"), worker.ask("device_type")) == (True, torch_device)
        worker.ask("release")


def a_forked_child_leaves_the_device_alone(torch_device: str) -> None:
    """A child's calls raise, and its end takes nothing from its parent."""
    with store_and_workers(1) as (_, (worker,)):
        worker.ask("write", TOKENS)
        worker.ask("hold", TOKENS)
        assert worker.ask("device_type") == torch_device
        assert worker.ask("fork") == (0, True)
        worker.ask("release")


def a_hidden_device_is_a_closed_namespace(torch_device: str) -> None:
    """A worker that does not see the device says so, misses, and keeps nobody else from it."""
    with store_and_workers(1) as (store, (worker,)):
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        with device_process(store.runtime_dir, environment=hidden, wait_open=False) as blind:
            assert blind.ask("failure") == ("DeviceUnavailable", "DeviceUnavailable")
            worker.ask("write", TOKENS)
            assert worker.ask("hold", TOKENS) == len(TOKENS) - 1
            assert (worker.ask("reads_right"), worker.ask("device_type")) == (True, torch_device)
            worker.ask("release")


def a_budget_beyond_the_device_is_refused(torch_device: str) -> None:
    """A server whose budget the device never has does not start, and says how much there is."""
    del torch_device
    with (
        pytest.raises(RuntimeError, match=r"status 1(.|\n)*tier1_bytes is \d+, and cuda:0 has \d+"),
        running_store("--device", "cuda:0", "--tier1-bytes", "1PiB"),
    ):
        pass


def memory_moves_between_tenants(torch_device: str) -> None:
    """An extent goes back to the device when its tenant's workers unmapped it, and only then."""
    with store_of_tenants() as (_, worker):
        giver = worker(5001)
        assert giver.ask("wait_open")
        giver.ask("write", TOKENS)
        for number in range(10, 10 + SLOTS // 4 + 4):
            giver.ask("write", prompt(number))
        assert giver.ask("wait_opened", 2)
        full: int = giver.ask("available_bytes")
        # It may have been evicted while the second extent was on its way.
        giver.ask("write", prompt(12))
        assert giver.ask("hold", prompt(12)) > 0
        asker = worker(5002)
        assert asker.ask("wait_open")
        assert giver.ask("wait_opened", 1)
        asker.ask("write", OTHERS)
        assert asker.ask("hold", OTHERS) == len(OTHERS) - 1
        assert (asker.ask("reads_right"), asker.ask("device_type")) == (True, torch_device)
        assert giver.ask("reads_right")
        if torch_device == "cpu":  # elsewhere its context takes room besides
            assert asker.ask("available_bytes") == full
        giver.ask("release")
        asker.ask("release")


def memory_goes_with_its_last_user(extent_bytes: int, slack_bytes: int) -> None:
    """A dead store's memory stays as long as a worker maps it, and then returns to the device."""
    # Otherwise the memory that the store reserved beyond its extents would return at once.
    grow = ("--tier1-reserve", "grow")
    with store_and_workers(2, *grow, extent_bytes=extent_bytes) as (store, (worker, witness)):
        worker.ask("write", TOKENS)
        worker.ask("hold", TOKENS)
        with_store: int = witness.ask("available_bytes")
        store.kill()
        assert witness.ask("wait_opened", 0)
        assert witness.ask("available_bytes") < with_store + extent_bytes - slack_bytes
        assert worker.ask("reads_right")
        worker.ask("release")
        assert worker.ask("wait_opened", 0)
        assert witness.ask("wait_available", with_store + extent_bytes - slack_bytes)


SCENARIOS: list[Any] = [
    workers_share_pages_in_place,
    a_source_page_is_copied_on_the_device,
    an_arena_grows_on_the_device,
    a_killed_writer_leaves_what_it_published,
    pages_outlive_their_store,
    a_view_outlives_its_store,
    removed_pages_stay_for_their_reader,
    memory_moves_between_tenants,
    one_process_opens_a_handle_once,
    a_forked_child_leaves_the_device_alone,
    a_hidden_device_is_a_closed_namespace,
    a_budget_beyond_the_device_is_refused,
]
