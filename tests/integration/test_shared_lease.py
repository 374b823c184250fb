"""An engine of several processes: a scheduler that owns a lease, and ranks that join it."""

import signal
from collections.abc import Iterator

import pytest

from kvstore_client.testing import wait_until
from pages.stamped_pages import PART_PAGES, page_count, prompt
from processes.page_worker import LONG_TTL
from processes.worker_fleet import Fleet, running_fleet
from processes.worker_process import WorkerProcess

TOKENS = prompt(1, 2)
PAGES = page_count(TOKENS)
LONGER = prompt(1, 2, 3)
PRESSURE = [prompt(4, number) for number in range(20)]


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    """Provides workers with a TTL of 300 s on a store of 64 pages in extents of 16."""
    with running_fleet(extent_slots=16) as running:
        yield running


class Ranked:
    """A scheduler and two ranks, all attached under one lease."""

    def __init__(self, fleet: Fleet, *, ttl: float = LONG_TTL) -> None:
        """Starts them. ``ttl`` is the ranks' TTL; they check the lease three times within it."""
        self.fleet = fleet
        self.scheduler = fleet.spawn("scheduler")
        join = self.scheduler.ask("share_lease")
        names = ("rank 0", "rank 1")
        self.ranks = [fleet.spawn(each, ttl=ttl, join=join) for each in names]
        (epoch,) = {each.ask("epoch") for each in self.processes}
        assert epoch is not None

    @property
    def processes(self) -> list[WorkerProcess]:
        """Returns the scheduler and both ranks."""
        return [self.scheduler, *self.ranks]

    def mapped(self) -> dict[int, int]:
        """Returns the attached processes of the scheduler's lease, with their counts of extents."""
        (lease,) = self.fleet.leases("scheduler")
        return {each.pid: each.mapped_extent_count for each in lease.processes}

    def hold(self) -> None:
        """Lets the scheduler hold a match of a whole prompt, and slots for the rest."""
        self.scheduler.ask("write", TOKENS)
        # Slots are handed out as soon as all three have them mapped.
        assert wait_until(self._acquired)
        assert len(self.scheduler.ask("fill", "held")) == PART_PAGES

    def _acquired(self) -> bool:
        if self.scheduler.ask("acquire", "held", LONGER) == len(TOKENS) - 1:
            return True
        self.scheduler.ask("release", "held")
        return False


def kill(process: WorkerProcess) -> None:
    """Kills a process and waits until it is gone."""
    process.signal(signal.SIGKILL)
    assert process.wait_exit() == -signal.SIGKILL


@pytest.fixture
def ranked(fleet: Fleet) -> Ranked:
    """Provides a scheduler and two ranks."""
    return Ranked(fleet)


def test_ranks_reach_the_scheduler_s_pages(ranked: Ranked) -> None:
    """Each rank reads the scheduler's pages in place, and only the scheduler makes requests."""
    assert set(ranked.mapped()) == {each.pid for each in ranked.processes}
    assert [each.display_name for each in ranked.fleet.stats().leases] == ["scheduler"]
    ranked.hold()
    pages = ranked.scheduler.ask("matched_pages", "held")
    written = ranked.scheduler.ask("check", "held")
    for rank in ranked.ranks:
        assert rank.ask("stamps_at", TOKENS, pages) == written
        assert "owner makes the requests" in rank.ask("failure_of_a_match", TOKENS)


def test_slots_are_handed_out_in_what_all_have_mapped(ranked: Ranked) -> None:
    """Slots are granted only in extents that all processes have mapped, a stopped rank included."""
    ranked.scheduler.ask("write", TOKENS)
    stopped, other = ranked.ranks
    stopped.signal(signal.SIGSTOP)
    ranked.scheduler.ask("churn", PRESSURE, 1)
    assert wait_until(lambda: ranked.mapped()[other.pid] > ranked.mapped()[stopped.pid])
    ranked.scheduler.ask("churn", PRESSURE, 1)
    granted = {page.extent_id for page in ranked.scheduler.ask("granted")}
    assert len(granted) <= ranked.mapped()[stopped.pid]
    stopped.signal(signal.SIGCONT)
    assert wait_until(lambda: len(set(ranked.mapped().values())) == 1)
    assert other.ask("epoch") == ranked.scheduler.ask("epoch")


def test_a_lease_is_dead_when_all_its_processes_are(ranked: Ranked) -> None:
    """A lease's pins and slots stay while any of its processes lives, and go with the last one."""
    witness = ranked.fleet.spawn("witness")
    ranked.hold()
    held = ranked.fleet.slots()
    assert held.reserved == PART_PAGES
    for process in ranked.processes[:-1]:
        kill(process)
        assert wait_until(lambda gone=process.pid: gone not in ranked.mapped())
        stats = ranked.fleet.stats()
        assert (stats.pin_count, stats.reservation_count) == (1, 1)
        assert ranked.fleet.slots().reserved == PART_PAGES
    # Nobody gets what the last rank may still read or write.
    written = witness.ask("stamps", TOKENS)
    witness.ask("churn", PRESSURE, 1)
    assert witness.ask("stamps", TOKENS) == written
    kill(ranked.ranks[-1])
    assert wait_until(lambda: ranked.fleet.leases("scheduler") == [])
    assert wait_until(ranked.fleet.settled)
    assert ranked.fleet.stats().pin_count == 0


def test_ranks_end_with_the_lease(fleet: Fleet) -> None:
    """A scheduler that closes ends the lease at once, and its ranks notice it and unmap."""
    ranked = Ranked(fleet, ttl=3.0)
    ranked.hold()
    ranked.scheduler.ask("release", "held")
    assert ranked.scheduler.leave() == 0
    assert wait_until(lambda: fleet.leases("scheduler") == [])
    assert wait_until(fleet.settled)
    for rank in ranked.ranks:
        assert wait_until(lambda rank=rank: rank.ask("epoch") is None)
        assert wait_until(lambda rank=rank: rank.ask("mappings") == 0)
