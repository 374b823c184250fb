"""A store that outlives its servers because it is in the test's process."""

import os

from kvstore.core import PrefixCache
from kvstore.service.attached_processes import Process, Processes
from kvstore.succession.store_succession import Succession


class Outliving(Succession):
    """A succession that says that the next server goes on, and leaves that to the test."""

    @property
    def outlives(self) -> bool:
        """True, without a carrier."""
        return True


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
