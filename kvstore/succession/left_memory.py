"""Memory of an earlier store that its workers may still have mapped, after a clean start."""

import os
import secrets
from collections.abc import Collection, Mapping
from contextlib import suppress
from threading import Lock
from typing import NamedTuple

import structlog

from kvstore.holder.carrier import CarriedDescriptor, CarrierFailed, DescriptorCarrier
from kvstore.holder.holder_process import DescriptorKind, close_all, is_dead, pid_of

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Names of deposits. A random part follows, so that those of several clean starts differ.
LEFT_NAMES = "left-"
_RANDOM_BYTES = 8


class _Worker(NamedTuple):
    pid: int
    descriptor: int


class LeftMemory:
    """Extents that a store left behind, and the processes that may have them mapped. Thread-safe.

    The kernel frees the memory once no process maps it, and says to nobody when that is. So all of
    it counts as taken until each process is dead, or has attached to this server: a client attaches
    to another store only once it has unmapped the memory of the one before. Until then the
    descriptors stay with the carrier, so that a later server counts them too.
    """

    def __init__(self, carrier: DescriptorCarrier | None = None) -> None:
        self._carrier = carrier
        self._lock = Lock()
        # By inode, so that memory under two names counts once.
        self._sizes: dict[tuple[int, int], int] = {}
        self._memory: dict[str, int] = {}
        self._workers: dict[str, _Worker] = {}

    @property
    def size_bytes(self) -> int:
        """The bytes that count as taken."""
        return sum(self._sizes.values())

    def take(self, carried: Mapping[str, CarriedDescriptor]) -> None:
        """Takes over what earlier clean starts left, of a carrier's descriptors."""
        for name, each in carried.items():
            if is_left(name):
                self._add(name, each)
        self.look()

    def leave(self, carried: Mapping[str, CarriedDescriptor]) -> None:
        """Leaves extents and processes behind, under other names. Takes over the descriptors.

        Does so only if one of the processes lives. The caller drops the names. Raises
        ``CarrierFailed``.
        """
        assert self._carrier is not None  # it has descriptors
        pidfds = [e for e in carried.values() if e.identity.kind == DescriptorKind.PIDFD]
        if all(is_dead(each.descriptor) for each in pidfds):
            close_all([each.descriptor for each in carried.values()])
            return
        prefix = LEFT_NAMES + secrets.token_hex(_RANDOM_BYTES)
        known = set(self._sizes)
        for number, each in enumerate(carried.values()):
            if (each.identity.device, each.identity.inode) in known:
                close_all([each.descriptor])
                continue
            name = f"{prefix}-{number}"
            self._carrier.put({name: each.descriptor})
            self._add(name, each)
        pids = sorted(each.pid for each in self._workers.values())
        log.warning("memory_left_behind", size_bytes=self.look(), pids=pids)

    def attached(self, pid: int, pidfd: int) -> None:
        """Notes that a process attached to this server, so it has nothing of another mapped."""
        with self._lock:
            gone = [
                name for name, each in self._workers.items() if _are_one(each, _Worker(pid, pidfd))
            ]
            self._forget_workers(gone)

    def look(self) -> int:
        """Returns the bytes that count as taken now. Frees all once no process is left."""
        if not (self._memory or self._workers):
            return 0
        with self._lock:
            dead = [name for name, each in self._workers.items() if is_dead(each.descriptor)]
            self._forget_workers(dead)
            if not self._workers:
                if self._memory:
                    log.info("memory_left_behind_is_free", size_bytes=self.size_bytes)
                self._drop(list(self._memory))
                close_all(self._memory.values())
                self._memory.clear()
                self._sizes.clear()
            return self.size_bytes

    def close(self) -> None:
        """Closes the descriptors. The carrier keeps what it has for a later server."""
        with self._lock:
            close_all([*self._memory.values(), *(w.descriptor for w in self._workers.values())])
            self._memory.clear()
            self._workers.clear()
            self._sizes.clear()

    def _add(self, name: str, carried: CarriedDescriptor) -> None:
        identity = carried.identity
        if identity.kind == DescriptorKind.PIDFD:
            self._workers[name] = _Worker(pid_of(carried.descriptor) or 0, carried.descriptor)
        else:
            self._memory[name] = carried.descriptor
            self._sizes[identity.device, identity.inode] = identity.size_bytes

    def _forget_workers(self, names: Collection[str]) -> None:
        self._drop(names)
        close_all([self._workers.pop(each).descriptor for each in names])

    def _drop(self, names: Collection[str]) -> None:
        if names and self._carrier is not None:
            with suppress(CarrierFailed):
                self._carrier.drop(names)


def is_left(name: str) -> bool:
    """Returns whether a deposit is of memory that a clean start left behind."""
    return name.startswith(LEFT_NAMES)


def _are_one(one: _Worker, other: _Worker) -> bool:
    """Returns whether two pidfds are of one living process.

    Since Linux 6.9 each process has its own inode of pidfds. Before, the pid decides, which is 0
    for a process of another pid namespace.
    """
    found = os.fstat(one.descriptor), os.fstat(other.descriptor)
    same = (found[0].st_dev, found[0].st_ino) == (found[1].st_dev, found[1].st_ino)
    return same and one.pid == other.pid and (one.pid > 0 or _has_own_inode(found[0].st_ino))


def _has_own_inode(inode: int) -> bool:
    """Returns whether a pidfd's inode is its process's own, and not that of all anonymous files."""
    with os.fdopen(os.eventfd(0), "rb", 0) as anonymous:
        return os.fstat(anonymous.fileno()).st_ino != inode
