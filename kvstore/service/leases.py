"""Leases and their processes, under the store's mutex, and the drain that waits for their end."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from threading import Condition, Lock
from time import sleep

import structlog

from kvstore import background
from kvstore.core import Caller, PrefixCache
from kvstore.core.leases.lease import LeaseChange
from kvstore.errors import FeatureUnsupported, StoreDraining
from kvstore.service.clock import Clock
from kvstore.service.event_watches import ChangePublisher

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# The log's event for each change of a lease.
EVENTS = {
    "expired": "lease_expired",
    "returned": "quarantine_returned",
    "ended": "lease_ended",
}


class Leases:
    """The life of leases. Thread-safe. Raises what the core's methods raise.

    ``mutex`` is the store's; it guards ``cache``. ``announcer`` is woken when a lease or a process
    changes. ``draining`` says that the store takes no new work.
    """

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        self.announcer = ChangePublisher()
        self.draining = False
        self._cache = cache
        self._mutex = mutex
        self._clock = clock
        self._lease_ended = Condition(mutex)

    # Life of the store.

    def begin_draining(self) -> None:
        """Refuses new work from now on. Clients may finish, insert and release what they hold.

        The store grants and renews no lease, opens no namespace, and matches nothing. A client that
        is refused for this ends its lease once it holds nothing.
        """
        self.draining = True
        self.announcer.announce()

    def wait_drained(self, timeout: float) -> int:
        """Waits at most ``timeout`` seconds until no lease is left; returns how many are left.

        A lease that ended counts until all of its holds went back.
        """
        table = self._cache.table
        with self._lease_ended:
            self._lease_ended.wait_for(lambda: not (table.leases or table.ending), timeout)
            return len(table.leases) + len(table.ending)

    def require_open(self) -> None:
        """Raises StoreDraining if the store takes no new work."""
        if self.draining:
            raise StoreDraining

    # Membership.

    def grant(
        self, caller: Caller, *, ttl: float | None, display_name: str, features: Items[str]
    ) -> float:
        """Grants a lease, or renews the one of this id; returns its TTL in seconds.

        Raises StoreDraining, besides the errors of the core.
        """
        self.require_open()
        with self._mutex:
            return self._cache.grant(
                caller,
                ttl=ttl,
                display_name=display_name,
                features=features,
                now=self._clock(),
            )

    def renew(self, caller: Caller) -> float:
        """Renews the lease from now on and returns its TTL, in seconds.

        Raises StoreDraining, besides the errors of the core.
        """
        self.require_open()
        with self._mutex:
            return self._cache.renew(caller, self._clock())

    def revoke(self, caller: Caller) -> None:
        """Ends the caller's own lease. An admin without its secret expires it.

        All that the lease held is back when this returns. Other calls get in between.
        """
        with self._mutex:
            changes = self._cache.revoke(caller, self._clock())
        self.report(changes)
        self._return_holds()

    def require_feature(self, caller: Caller, feature: str) -> None:
        """Raises FeatureUnsupported unless the caller's lease declared a feature.

        Raises the core's errors if the caller has no such lease.
        """
        with self._mutex:
            declared = self._cache.table.find(caller).features
        if feature not in declared:
            raise FeatureUnsupported(feature=feature, why="the lease did not declare it")

    def expire(self) -> None:
        """Expires the leases past their TTL, and drops old tombstones."""
        with self._mutex:
            changes = self._cache.expire(self._clock())
        self.report(changes)
        self._return_holds()

    def bind(self, caller: Caller, *, process_id: int, pid: int, uid: int) -> None:
        """Attaches a process to the caller's lease, or reconnects one of the same number."""
        with self._mutex:
            self._cache.bind(caller, process_id=process_id, pid=pid, uid=uid)

    def acknowledge(self, process_id: int, extent_ids: Items[int]) -> list[int]:
        """Records that a process mapped extents, and returns them. Ignores unknown ones."""
        with self._mutex:
            self._cache.acknowledge(process_id, extent_ids)
            process = self._cache.table.processes.get(process_id)
            return [] if process is None else [e for e in extent_ids if e in process.mapped]

    def unmapped(self, process_id: int, extent_ids: Items[int]) -> None:
        """Records that a process unmapped extents, of which some may be destroyed now."""
        with self._mutex:
            self._cache.unmapped(process_id, extent_ids)
        self.announcer.announce()

    def extents_to_unmap(self, process_id: int) -> list[int]:
        """Returns the extents that a process has mapped and must unmap."""
        with self._mutex:
            return self._cache.extents_to_unmap(process_id)

    def disconnected(self, process_id: int) -> None:
        """Records that a process lost its attach connection. The process may be alive."""
        with self._mutex:
            self._cache.disconnected(process_id)
        self.announcer.announce()

    def process_died(self, process_id: int) -> None:
        """Removes a process that is proven dead. A lease ends with its last process."""
        with self._mutex:
            changes = self._cache.process_died(process_id, self._clock())
        self.report(changes)
        self._return_holds()
        self.announcer.announce()

    def attached_process_ids(self) -> set[int]:
        """Returns the numbers of all processes that are attached under a lease."""
        with self._mutex:
            return set(self._cache.table.processes)

    def watched_process_ids(self) -> set[int]:
        """Returns attached processes, and those of ended leases that may still map memory."""
        with self._mutex:
            return self._cache.table.processes.keys() | self._cache.state.mappings.process_ids

    def _return_holds(self) -> None:
        """Gives back all that ended leases held, a part under the mutex at a time."""
        while self._cache.table.ending:
            sleep(background.PAUSE)
            with self._mutex:
                changes = self._cache.return_holds()
            self.report(changes)

    def report(self, changes: Iterable[LeaseChange]) -> None:
        """Logs changes of leases, and wakes all listeners if there were any."""
        for change in changes:
            fields = change._asdict() | {"lease_id": change.lease_id.hex()}
            log.info(EVENTS[fields.pop("change")], **fields)
            with self._lease_ended:
                self._lease_ended.notify_all()
            self.announcer.announce()
