"""Attached processes: real ones, that really die."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from typing import cast

import pytest

from kvstore.holder.carrier import CarrierFull, DescriptorCarrier
from kvstore.service.attached_processes import Process, Processes, has_died
from kvstore.storage.held_memory import HeldMemory
from wire.own_logs import own_logs

LEASE = b"lease 16 bytes.."
OTHER_LEASE = b"other 16 bytes.."


class Child:
    """A process that lives until it is killed, and a pidfd of it."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        self.pid = self.process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """Kills it and waits until it is gone; can be repeated."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def spawn() -> Iterator[Callable[[], Child]]:
    """Provides a maker of processes, which end with the test."""
    children: list[Child] = []

    def make() -> Child:
        children.append(Child())
        return children[-1]

    yield make
    for child in children:
        child.kill()
        os.close(child.pidfd)


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Provides an empty table."""
    with closing(Processes()) as made:
        yield made


def test_a_process_that_attaches_again_is_the_same(
    processes: Processes, spawn: Callable[[], Child]
) -> None:
    """By whatever pidfd it comes, a living process keeps its number under a lease."""
    child = spawn()
    first = processes.attach(child.pid, child.pidfd, LEASE)
    again = os.pidfd_open(child.pid)
    assert processes.attach(child.pid, again, LEASE) == first
    os.close(again)
    assert list(processes) == [first]


def test_another_lease_or_process_has_another_number(
    processes: Processes, spawn: Callable[[], Child]
) -> None:
    """Numbers tell processes apart, and the leases that one is attached under."""
    one, two = spawn(), spawn()
    numbers = {
        processes.attach(one.pid, one.pidfd, LEASE).process_id,
        processes.attach(one.pid, one.pidfd, OTHER_LEASE).process_id,
        processes.attach(two.pid, two.pidfd, LEASE).process_id,
    }
    assert len(numbers) == 3


def test_processes_of_other_pid_namespaces_are_told_apart(
    processes: Processes, spawn: Callable[[], Child]
) -> None:
    """Two processes whose pids are not known here are not taken for one."""
    one, two = spawn(), spawn()
    first = processes.attach(0, one.pidfd, LEASE)
    assert processes.attach(0, two.pidfd, LEASE).process_id != first.process_id


def test_without_pid_and_inode_nothing_is_taken_for_the_same(processes: Processes) -> None:
    """An unknown pid is never known if a pidfd is an anonymous file, as on older kernels."""
    anonymous = os.eventfd(0)
    first = processes.attach(0, anonymous, LEASE)
    assert processes.attach(0, anonymous, LEASE).process_id != first.process_id
    assert processes.attach(9, anonymous, LEASE) == processes.attach(9, anonymous, LEASE)
    os.close(anonymous)


def test_a_pid_that_is_used_again_is_another_process(
    processes: Processes, spawn: Callable[[], Child]
) -> None:
    """A process under the pid of a dead one gets a number of its own, and outlives its record."""
    dead, living = spawn(), spawn()
    first = processes.attach(7, dead.pidfd, LEASE)
    dead.kill()
    second = processes.attach(7, living.pidfd, LEASE)
    assert second.process_id != first.process_id
    assert processes.died(first.process_id)
    assert not processes.died(second.process_id)
    processes.forget(first.process_id)
    assert processes.attach(7, living.pidfd, LEASE) == second


def test_death_is_seen_and_life_is(processes: Processes, spawn: Callable[[], Child]) -> None:
    """A process has died once it was killed, and not before."""
    child = spawn()
    process = processes.attach(child.pid, child.pidfd, LEASE)
    assert not processes.died(process.process_id)
    child.kill()
    assert processes.died(process.process_id)
    assert has_died(child.pidfd)


def test_a_forgotten_process_is_gone_with_its_pidfd(
    processes: Processes, spawn: Callable[[], Child]
) -> None:
    """Forgetting closes the table's pidfd, not the caller's; the number is not used again."""
    child = spawn()
    process = processes.attach(child.pid, child.pidfd, LEASE)
    processes.forget(process.process_id)
    assert process.process_id not in processes
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(process.pidfd)
    os.fstat(child.pidfd)
    assert processes.attach(child.pid, child.pidfd, LEASE).process_id != process.process_id


def test_pidfds_are_not_inherited(processes: Processes, spawn: Callable[[], Child]) -> None:
    """A program that the server starts holds no pidfd of a worker."""
    child = spawn()
    assert not os.get_inheritable(processes.attach(child.pid, child.pidfd, LEASE).pidfd)


class Carrier:
    """A carrier that notes what it is told, and what is deposited."""

    def __init__(self) -> None:
        self.deposits: dict[str, int] = {}
        self.full = False

    def put(self, descriptors: dict[str, int]) -> bool:
        """Deposits, unless it is full."""
        if self.full:
            raise CarrierFull("no more than 0 descriptors")
        self.deposits |= descriptors
        return True

    def drop(self, names: Iterable[str]) -> bool:
        """Ends deposits."""
        for name in names:
            del self.deposits[name]
        return True


def kept_by(carrier: Carrier) -> Processes:
    """Returns a table whose pidfds a carrier keeps."""
    return Processes(HeldMemory(cast("DescriptorCarrier", carrier)))


def test_a_pidfd_is_deposited_until_its_process_is_forgotten(spawn: Callable[[], Child]) -> None:
    """The end of the table, which is that of the server, leaves it to the next one."""
    child, carrier = spawn(), Carrier()
    with closing(kept_by(carrier)) as table:
        first = table.attach(child.pid, child.pidfd, LEASE)
        second = table.attach(child.pid, child.pidfd, OTHER_LEASE)
        assert carrier.deposits == {"process-1": first.pidfd, "process-2": second.pidfd}
        table.forget(1)
        assert carrier.deposits == {"process-2": second.pidfd}
    assert carrier.deposits == {"process-2": second.pidfd}


def test_a_process_attaches_without_room_for_its_pidfd(spawn: Callable[[], Child]) -> None:
    """Then only the next server has to do without what this one has."""
    child, carrier = spawn(), Carrier()
    carrier.full = True
    with closing(kept_by(carrier)) as table, own_logs() as lines:
        assert table.attach(child.pid, child.pidfd, LEASE).process_id == 1
    assert [line["event"] for line in lines] == ["process_not_deposited"]


def test_a_process_of_the_server_before_keeps_its_number(
    processes: Processes, spawn: Callable[[], Child]
) -> None:
    """It is the same process when it attaches again, and others get other numbers."""
    child, other = spawn(), spawn()
    pidfds = os.dup(child.pidfd), os.dup(other.pidfd)
    before = [
        Process(4, child.pid, LEASE, pidfds[0]),
        # Of a lease that ended: it has memory mapped.
        Process(9, other.pid, b"", pidfds[1]),
    ]
    processes.restore(before)
    assert list(processes) == before
    assert processes.attach(child.pid, child.pidfd, LEASE) == before[0]
    assert processes.attach(other.pid, other.pidfd, LEASE).process_id == 10
    child.kill()
    assert processes.died(4)


def test_a_process_is_found_under_its_lease_alone(
    processes: Processes, spawn: Callable[[], Child]
) -> None:
    """By whatever pidfd it comes; until it is forgotten."""
    one, two = spawn(), spawn()
    first = processes.attach(one.pid, one.pidfd, LEASE)
    assert processes.find(one.pid, one.pidfd, LEASE) == first
    assert processes.find(one.pid, one.pidfd, OTHER_LEASE) is None
    assert processes.find(two.pid, two.pidfd, LEASE) is None
    processes.forget(first.process_id)
    assert processes.find(one.pid, one.pidfd, LEASE) is None
