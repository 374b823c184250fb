"""Attached processes: a number and a pidfd each, and whether they are dead."""

import os
import select
from collections.abc import Hashable, Iterable, Iterator
from contextlib import closing
from typing import NamedTuple

import structlog

from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.held_memory import HeldMemory, process_name
from kvstore.succession.left_memory import LeftMemory

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class Process(NamedTuple):
    """A process as it is attached under one lease. The table owns ``pidfd``."""

    process_id: int
    pid: int
    lease_id: bytes
    pidfd: int


class Processes:
    """The processes that attached, until they died or their lease ended.

    Used by one thread, the attach server's. The core knows the processes by the same numbers. A
    process under two leases has two entries. Each pidfd is deposited with ``held``, so that a
    later server knows who died meanwhile: a pid may belong to another process by then.
    """

    def __init__(self, held: HeldMemory | None = None, left: LeftMemory | None = None) -> None:
        """``left`` is memory of an earlier store, which a process that attaches has unmapped."""
        self._left = LeftMemory() if left is None else left
        self._held = HeldMemory() if held is None else held
        self._processes: dict[int, Process] = {}
        self._by_key: dict[Hashable, int] = {}
        self._keys: dict[int, Hashable] = {}
        self._last_process_id = 0

    def __iter__(self) -> Iterator[Process]:
        return iter(list(self._processes.values()))

    def __contains__(self, process_id: int) -> bool:
        return process_id in self._processes

    def restore(self, processes: Iterable[Process]) -> None:
        """Takes over the processes of the server before this one, with their numbers; once.

        Their pidfds, which are deposited already, are the table's from now on.
        """
        for each in processes:
            self._add(each)
            self._last_process_id = max(self._last_process_id, each.process_id)

    def attach(self, pid: int, pidfd: int, lease_id: bytes) -> Process:
        """Returns the process under this lease: its existing entry, or a new one.

        ``pidfd`` is duplicated; the caller keeps its own. A process that reuses the pid of a dead
        one gets a new number. A new pidfd is deposited when this returns, before anything is
        written about its process.
        """
        key = (lease_id, _key(pid, pidfd))
        known = self._by_key.get(key)
        if known is not None and not self.died(known):
            return self._processes[known]
        self._left.attached(pid, pidfd)
        self._last_process_id += 1
        process = Process(self._last_process_id, pid, lease_id, os.dup(pidfd))
        self._add(process)
        try:
            self._held.keep(process_name(process.process_id), process.pidfd)
        except NotEnoughMemory as error:
            # The process works. A later server cannot tell if it lives, and starts clean.
            log.warning("process_not_deposited", pid=pid, why=str(error))
        return process

    def _add(self, process: Process) -> None:
        key = (process.lease_id, _key(process.pid, process.pidfd))
        self._processes[process.process_id] = process
        self._by_key[key] = process.process_id
        self._keys[process.process_id] = key

    def find(self, pid: int, pidfd: int, lease_id: bytes) -> Process | None:
        """Returns the process as it is attached under this lease, or None."""
        process_id = self._by_key.get((lease_id, _key(pid, pidfd)))
        return None if process_id is None else self._processes[process_id]

    def died(self, process_id: int) -> bool:
        """Returns whether the process is dead, by its pidfd."""
        return has_died(self._processes[process_id].pidfd)

    def forget(self, process_id: int) -> None:
        """Drops a process and closes its pidfd, which no thread may wait for any more.

        Nothing may be written about the process any more: a later server would miss its pidfd.
        """
        self._held.forget(process_name(process_id))
        self._drop(process_id)

    def close(self) -> None:
        """Drops all processes. Their pidfds stay deposited for a later server."""
        for process in self:
            self._drop(process.process_id)

    def _drop(self, process_id: int) -> None:
        process = self._processes.pop(process_id)
        key = self._keys.pop(process_id)
        if self._by_key.get(key) == process_id:
            del self._by_key[key]
        os.close(process.pidfd)


def has_died(pidfd: int) -> bool:
    """Returns whether the process behind a pidfd is dead, so that its memory is unmapped."""
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(0))


def _key(pid: int, pidfd: int) -> Hashable:
    """Returns a key that two pidfds share only if they belong to one living process.

    Since Linux 6.9 each process has its own pidfd inode. Before, all pidfds share the inode of
    anonymous files, and the pid decides. A process of another pid namespace has no pid here, so its
    key equals no other.
    """
    status = os.fstat(pidfd)
    if pid == 0 and status.st_dev == _anonymous_device():
        return object()
    return (status.st_dev, status.st_ino, pid)


def _anonymous_device() -> int:
    """Returns the device of anonymous files, on which old kernels keep pidfds."""
    with closing(select.epoll()) as anonymous:
        return os.fstat(anonymous.fileno()).st_dev
