"""Servers of one store in one process: what they say of the next one, and what it finds."""

import os

from kvstore.core import PrefixCache
from kvstore.service.attached_processes import Process, Processes
from kvstore.succession.store_succession import Succession


class ToldSuccession(Succession):
    """Has no carrier. ``outlives`` is what it was told, since the store itself goes on."""

    def __init__(self, *, outlives: bool) -> None:
        super().__init__()
        self._outlives = outlives

    @property
    def outlives(self) -> bool:
        """True if the store outlives its server, as the test says."""
        return self._outlives


def inherited(processes: Processes) -> Processes:
    """Returns the processes of a server for the next one. Call it before that server is closed."""
    found = Processes()
    found.restore(Process(*each)._replace(pidfd=os.dup(each.pidfd)) for each in processes)
    return found


def as_recovered(cache: PrefixCache, now: float) -> None:
    """Leaves a cache's leases and processes as recovery does: see kvstore.core.recovery."""
    for lease in cache.table.leases.values():
        lease.renewed_at = now
        if lease.processes:
            lease.quarantine()
            lease.suspended = True
    for process in cache.table.processes.values():
        process.connected = False
        process.mapped.clear()
