"""Who is in: leases and their processes under the store's mutex, and whether new ones may come."""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from threading import Condition, Lock

import structlog

from kvstore.core import Caller, PrefixCache
from kvstore.core.leases.lease import LeaseChange
from kvstore.errors import FeatureUnsupported, StoreDraining
from kvstore.service.administration import Administration
from kvstore.service.clock import Clock
from kvstore.service.events import Announcer

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# What a lease's change is called in the log.
EVENTS = {
    "expired": "lease_expired",
    "returned": "quarantine_returned",
    "ended": "lease_ended",
}


class Members(Administration):
    """Leases through their life, and the drain that waits for their end."""

    def __init__(self, cache: PrefixCache, mutex: Lock, clock: Clock) -> None:
        super().__init__(cache, mutex, clock)
        self.announcer = Announcer()
        self._lease_ended = Condition(mutex)
        self._draining = False

    # Life of the store.

    def begin_draining(self) -> None:
        """Takes no new work: what is held may be finished, inserted and let go.

        No lease is granted or renewed, no namespace opened, nothing matched. A client
        that is told so lets go of its lease as soon as nothing is held under it.
        """
        self._draining = True

    def wait_drained(self, timeout: float) -> int:
        """Waits until no lease is left, ``timeout`` seconds at most; returns how many are."""
        with self._lease_ended:
            self._lease_ended.wait_for(lambda: not self._cache.table.leases, timeout)
            return len(self._cache.table.leases)

    def _require_open(self) -> None:
        if self._draining:
            raise StoreDraining

    # Membership.

    def grant(
        self, caller: Caller, *, ttl: float | None, display_name: str, features: Items[str]
    ) -> float:
        """Grants a lease, or renew the one of this id; returns its TTL in seconds.

        Raises, besides what the core raises, StoreDraining.
        """
        self._require_open()
        with self._mutex:
            return self._cache.grant(
                caller,
                ttl=ttl,
                display_name=display_name,
                features=features,
                now=self._clock(),
            )

    def renew(self, caller: Caller) -> float:
        """Counts the lease's TTL from now on and returns it, in seconds.

        Raises, besides what the core raises, StoreDraining.
        """
        self._require_open()
        with self._mutex:
            return self._cache.renew(caller, self._clock())

    def revoke(self, caller: Caller) -> None:
        """Ends the caller's own lease; from an admin without its secret, expire it."""
        with self._mutex:
            changes = self._cache.revoke(caller, self._clock())
        self._report(changes)

    def require_feature(self, caller: Caller, feature: str) -> None:
        """Raises FeatureUnsupported where the caller's lease did not declare a feature.

        Raises, besides, what the core raises where it is no lease of the caller's.
        """
        with self._mutex:
            declared = self._cache.table.find(caller).features
        if feature not in declared:
            raise FeatureUnsupported(feature=feature, why="the lease did not declare it")

    def expire(self) -> None:
        """Let time pass: expire leases past their TTL, drop old tombstones."""
        with self._mutex:
            changes = self._cache.expire(self._clock())
        self._report(changes)

    def bind(self, caller: Caller, *, process_id: int, pid: int, uid: int) -> None:
        """Attaches a process to the caller's lease; again under the same number: reconnected."""
        with self._mutex:
            self._cache.bind(caller, process_id=process_id, pid=pid, uid=uid)

    def acknowledge(self, process_id: int, extent_ids: Items[int]) -> list[int]:
        """Count on a process having mapped extents, and return them; unknown ones are ignored."""
        with self._mutex:
            self._cache.acknowledge(process_id, extent_ids)
            process = self._cache.table.processes.get(process_id)
            return [] if process is None else [e for e in extent_ids if e in process.mapped]

    def unmapped(self, process_id: int, extent_ids: Items[int]) -> None:
        """Counts no more on a process having mapped extents; some may be destroyed now."""
        with self._mutex:
            self._cache.unmapped(process_id, extent_ids)
        self.announcer.announce()

    def extents_to_unmap(self, process_id: int) -> list[int]:
        """Returns the extents that a process was given and has to unmap."""
        with self._mutex:
            return self._cache.extents_to_unmap(process_id)

    def disconnected(self, process_id: int) -> None:
        """Notes that a process, alive as far as is known, lost its attach connection."""
        with self._mutex:
            self._cache.disconnected(process_id)
        self.announcer.announce()

    def process_died(self, process_id: int) -> None:
        """Forgets a process proven dead; the last of a lease ends it."""
        with self._mutex:
            changes = self._cache.process_died(process_id, self._clock())
        self._report(changes)
        self.announcer.announce()

    def attached_process_ids(self) -> set[int]:
        """Returns the numbers of all processes that are attached under a lease."""
        with self._mutex:
            return set(self._cache.table.processes)

    def watched_process_ids(self) -> set[int]:
        """Returns those, and of processes whose lease ended all that may have memory mapped."""
        with self._mutex:
            return self._cache.table.processes.keys() | self._cache.state.mappings.process_ids

    def _report(self, changes: Iterable[LeaseChange]) -> None:
        """Logs what happened to leases, and wake who listens if any did."""
        for change in changes:
            fields = change._asdict() | {"lease_id": change.lease_id.hex()}
            log.info(EVENTS[fields.pop("change")], **fields)
            with self._lease_ended:
                self._lease_ended.notify_all()
            self.announcer.announce()
