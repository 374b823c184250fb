"""Pages of KV cache groups between real processes, and after the death of one."""

import signal
from collections.abc import Iterator

import pytest

from kvstore_client.testing import wait_until
from pages.stamped_pages import LAYOUT
from processes.group_worker import group_process
from processes.worker_fleet import POOL_SLOTS, Fleet, Slots
from processes.worker_process import WorkerProcess

PAGES = 6
TOKENS = [7 + number for number in range(PAGES * LAYOUT.page_tokens + 1)]
GROUPS = {1: [0, 1, 2, 4, 5], 2: [2, 3, 5]}
PUBLISHED = PAGES + sum(map(len, GROUPS.values()))


@pytest.fixture(params=[True, False], ids=["lane", "grpc"])
def workers(
    fleet: Fleet, request: pytest.FixtureRequest
) -> Iterator[tuple[WorkerProcess, WorkerProcess]]:
    """Provides a writer and a reader, over lanes or over gRPC."""
    folder = fleet.store.runtime_dir
    writer, reader = (
        group_process(folder, name, hot_lane=request.param) for name in ("writer", "reader")
    )
    with writer, reader:
        yield writer, reader


def test_one_process_reads_what_another_published(
    fleet: Fleet, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    """Every byte of every page is right, and a match ends where the windows are whole."""
    writer, reader = workers
    assert writer.ask("reserve", 8) == 8
    assert writer.ask("write", TOKENS, GROUPS) == GROUPS
    assert fleet.slots().cached == PUBLISHED
    assert reader.ask("match", "", TOKENS, {1: 1, 2: 1}) == (6, {1: [5], 2: [5]})
    assert reader.ask("match", "", TOKENS, {1: 2, 2: 1}) == (6, {1: [4, 5], 2: [5]})
    assert reader.ask("match", "", TOKENS, {1: 3, 2: 1}) == (3, {1: [0, 1, 2], 2: [2]})
    assert reader.ask("match", "", TOKENS, {1: 0, 2: 1}, 4) == (6, {1: [4, 5], 2: [5]})
    assert reader.ask("match", "", TOKENS, {1: 0, 2: 0}) == (0, {})
    assert reader.ask("match", "", TOKENS, {}) == (6, {})
    more = {1: [3], 2: [4, 5]}
    assert reader.ask("reserve", 4) == 4
    assert reader.ask("write", TOKENS, more) == {1: [3], 2: [4]}
    assert writer.ask("match", "", TOKENS, {1: 0, 2: 4}) == (6, {1: [*range(6)], 2: [2, 3, 4, 5]})
    assert reader.ask("refill") == 4
    assert fleet.slots().cached == PUBLISHED + 2


def test_a_killed_process_gives_its_pages_of_groups_back(
    fleet: Fleet, workers: tuple[WorkerProcess, WorkerProcess]
) -> None:
    """Pinned pages stay while it lives. Its spare slots and its pins go with it."""
    writer, reader = workers
    writer.ask("reserve", 20)
    writer.ask("write", TOKENS, GROUPS)
    writer.ask("refill")
    held = {1: [4, 5], 2: [5]}
    assert writer.ask("match", "held", TOKENS, {1: 2, 2: 1}) == (6, held)
    writer.ask("write_and_wait", TOKENS)
    # Others take every slot that nobody holds.
    free = POOL_SLOTS - 20 - PAGES - 3
    assert reader.ask("reserve", free) == free
    assert fleet.slots() == Slots(0, 20 + free, PAGES + 3)
    writer.ask("look_again", "held", TOKENS)
    assert reader.ask("match", "held", TOKENS, {1: 2, 2: 1}) == (6, held)
    writer.signal(signal.SIGKILL)
    assert writer.wait_exit() == -signal.SIGKILL
    assert wait_until(lambda: fleet.slots() == Slots(20, free, PAGES + 3))
    assert fleet.leases("writer") == []
    reader.ask("look_again", "held", TOKENS)
    reader.ask("let_go")
    assert reader.ask("reserve", POOL_SLOTS) == POOL_SLOTS
    assert reader.ask("match", "", TOKENS, {1: 1}) == (0, {})
