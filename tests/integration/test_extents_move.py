"""Memory moves from one tenant to another between real processes, without its bytes."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from device.uid_by_environment import PROGRAM, as_uid
from kvstore_client.testing import running_store, wait_until
from pages.stamped_pages import LAYOUT, page_count, prompt
from processes.worker_fleet import POOL_SLOTS, Fleet, pool_arguments
from processes.worker_process import WorkerProcess

EXTENT_SLOTS = 8
EXTENTS = POOL_SLOTS // EXTENT_SLOTS
GIVER, ASKER = 5001, 5002
PROMPTS = [prompt(1, number) for number in range(2, 24)]
HELD = prompt(1, 50)


class Tenants:
    """Workers of two tenants on one store of eight extents."""

    def __init__(self, fleet: Fleet, *, contiguous: bool) -> None:
        """All workers except "other" map extents side by side if ``contiguous``."""
        self.fleet = fleet
        self._contiguous = contiguous
        self.givers = [self.spawn("giver", GIVER), self.spawn("other", GIVER)]

    def spawn(self, name: str, uid: int) -> WorkerProcess:
        """Starts a worker of a tenant, which opens its namespace first."""
        with as_uid(uid):
            return self.fleet.spawn(name, contiguous=self._contiguous and name != "other")

    def extents(self, uid: int) -> tuple[int, int]:
        """Returns the counts of a tenant's extents and of its retiring ones.

        Checks each time that all extents together are within the budget.
        """
        arenas = self.fleet.stats().arenas
        assert sum(each.slot_count for each in arenas) <= POOL_SLOTS
        for arena in arenas:
            assert arena.slot_count == arena.extent_count * EXTENT_SLOTS
        mine = [each for each in arenas if each.tenant == f"uid-{uid}"]
        return sum(e.extent_count for e in mine), sum(e.retiring_extent_count for e in mine)

    def fill(self) -> None:
        """Lets the first tenant take all memory. Both of its processes map all of it."""
        first, other = self.givers
        assert other.ask("peek", HELD) == 0

        def full() -> bool:
            first.ask("churn", PROMPTS, 1)
            return self.extents(GIVER) == (EXTENTS, 0)

        assert wait_until(full)
        assert wait_until(lambda: all(len(mapped(each)) == EXTENTS for each in self.givers))


def mapped(process: WorkerProcess) -> set[tuple[str, str]]:
    """Returns the names and inodes of the extents that a process has mapped."""
    lines = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8").splitlines()
    entries = [line.split() for line in lines if "/memfd:kvstore-extent-" in line]
    return {(entry[5], entry[4]) for entry in entries}


@pytest.fixture(params=[False, True], ids=["anywhere", "side-by-side"])
def tenants(request: pytest.FixtureRequest) -> Iterator[Tenants]:
    """Provides two workers of one tenant that have mapped all memory."""
    with running_store(*pool_arguments(EXTENT_SLOTS), program=PROGRAM) as store:
        with Fleet(store) as fleet:
            made = Tenants(fleet, contiguous=request.param)
            made.fill()
            yield made
        assert wait_until(lambda: not fleet.stats().leases)
        assert "Traceback" not in store.log, store.log


def test_a_tenant_that_comes_late_gets_memory_and_no_bytes(tenants: Tenants) -> None:
    """A second tenant gets fresh extents, and the first tenant's pinned pages stay as they were."""
    giver, other = tenants.givers
    giver.ask("write", HELD)
    held = page_count(HELD)
    assert giver.ask("match", "held", HELD) == held * LAYOUT.page_tokens
    before = mapped(giver)
    asker = tenants.spawn("asker", ASKER)
    assert asker.ask("reads_zero")
    assert tenants.extents(ASKER) == (1, 0)
    for tokens in PROMPTS:
        asker.ask("write", tokens)
        giver.ask("check", "held")
    # It wants more than its half, and comes to have no more than that.
    for _ in range(3):
        asker.ask("churn", PROMPTS, 1)
        giver.ask("churn", PROMPTS, 1)
        giver.ask("check", "held")

    def halved() -> bool:
        asker.ask("churn", PROMPTS, 1)
        return tenants.extents(ASKER)[0] == EXTENTS // 2

    assert wait_until(halved)
    giver.ask("check", "held")
    assert wait_until(lambda: tenants.extents(GIVER) == (EXTENTS // 2, 0))
    assert wait_until(lambda: mapped(giver) == mapped(other))
    assert len(mapped(giver)) == EXTENTS // 2
    assert mapped(giver) < before
    assert wait_until(lambda: len(mapped(asker)) == EXTENTS // 2)
    assert not mapped(asker) & before
    assert giver.ask("stamps", HELD)[0].writer == "giver"


def test_who_has_not_unmapped_keeps_the_memory(tenants: Tenants) -> None:
    """A view keeps an extent until it is dropped, and a stopped process until it is killed."""
    giver, other = tenants.givers
    other.ask("keep_view")
    asker = tenants.spawn("asker", ASKER)
    assert wait_until(lambda: tenants.extents(GIVER) == (EXTENTS, 1))
    assert wait_until(lambda: len(mapped(giver)) == EXTENTS - 1)
    assert len(mapped(other)) == EXTENTS
    assert tenants.extents(ASKER) == (0, 0)
    other.ask("drop_views")
    assert asker.ask("reads_zero")
    assert mapped(giver) == mapped(other)

    other.signal(signal.SIGSTOP)
    asker.ask("churn", PROMPTS, 1)
    assert wait_until(lambda: tenants.extents(GIVER) == (EXTENTS - 1, 1))
    assert wait_until(lambda: len(mapped(giver)) == EXTENTS - 2)
    asker.ask("churn", PROMPTS, 1)
    assert len(mapped(other)) == EXTENTS - 1
    assert tenants.extents(ASKER) == (1, 0)
    other.signal(signal.SIGKILL)
    assert wait_until(lambda: tenants.extents(ASKER) == (2, 0))
    assert tenants.extents(GIVER)[0] < EXTENTS - 1
