"""Leases: membership of workers, and all that each owns."""

from enum import Enum
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from kvstore.core.arena import Arena
from kvstore.core.caller import Caller, Identity
from kvstore.core.counters import Counters
from kvstore.core.holds import Pin, Reservation, SourcePin, Tombstones
from kvstore.core.limits import Limits
from kvstore.errors import (
    IdReused,
    LeaseExpired,
    LeaseNotFound,
    NotAttached,
    PinNotFound,
    QuotaExceeded,
    ReservationNotFound,
)


class LeaseState(Enum):
    """A lease's state. A lease that ended is not in the table any more."""

    ACTIVE = 1
    EXPIRED = 2


class LeaseChange(NamedTuple):
    """What happened to a lease, for the log: ``change`` is "expired" or "ended".

    The counts are what it held when it happened.
    """

    lease_id: bytes
    display_name: str
    change: str
    pin_count: int
    reserved_slot_count: int


class Process:
    """A process attached under a lease, and the extents that it said it mapped."""

    __slots__ = ("connected", "lease", "mapped", "pid", "process_id", "uid")

    def __init__(self, process_id: int, pid: int, uid: int, lease: "Lease") -> None:
        self.process_id = process_id
        self.pid = pid
        self.uid = uid
        self.lease = lease
        self.connected = True
        self.mapped: set[int] = set()


class Lease:
    """A worker's membership; ``number`` counts leases by granting. Not thread-safe."""

    def __init__(
        self, number: int, caller: Caller, display_name: str, limits: Limits, now: float
    ) -> None:
        self.number = number
        self.lease_id = caller.lease_id
        self.tenant = caller.identity.tenant
        self.display_name = display_name
        self.features: frozenset[str] = frozenset()
        self.state = LeaseState.ACTIVE
        self.granted_at = now
        self.ttl = 0.0
        self.renewed_at = now
        self.processes: dict[int, Process] = {}
        self.arenas: dict[int, Arena] = {}
        self.pins: dict[int, Pin | SourcePin] = {}
        self.reservations: dict[int, Reservation] = {}
        self.pin_tombstones = Tombstones(limits.tombstone_ttl)
        self.reservation_tombstones = Tombstones(limits.tombstone_ttl)
        self.counters = Counters()
        self._secret_digest = sha256(caller.secret).digest()
        self._max_holds = limits.max_holds_per_lease

    def knows(self, caller: Caller) -> bool:
        """Return whether tenant and secret are this lease's; in constant time."""
        same = compare_digest(self._secret_digest, sha256(caller.secret).digest())
        return same and caller.identity.tenant == self.tenant

    def require_active(self) -> None:
        """Raise :class:`LeaseExpired` past the TTL."""
        if self.state is LeaseState.EXPIRED:
            raise LeaseExpired(lease_id=self.lease_id.hex())

    def require_attached(self) -> None:
        """Raise :class:`NotAttached` unless a living process is attached."""
        if not self.processes:
            raise NotAttached(lease_id=self.lease_id.hex())

    def require_room(self, count: int) -> None:
        """Raise :class:`QuotaExceeded` if ``count`` more holds are too many."""
        if len(self.pins) + len(self.reservations) + count > self._max_holds:
            raise QuotaExceeded(quota="holds_per_lease", maximum=self._max_holds)

    def pin(self, pin_id: int) -> Pin | SourcePin:
        """Return a pin; raises :class:`PinNotFound`."""
        if pin_id not in self.pins:
            raise PinNotFound(pin_id=pin_id)
        return self.pins[pin_id]

    def reservation(self, reservation_id: int) -> Reservation:
        """Return a reservation; raises :class:`ReservationNotFound` or Tombstoned."""
        if reservation_id not in self.reservations:
            self.reservation_tombstones.require_none(reservation_id, id=reservation_id)
            raise ReservationNotFound(reservation_id=reservation_id)
        return self.reservations[reservation_id]

    def usable_extents(self, arena: Arena) -> set[int]:
        """Return the extents of ``arena`` that all attached processes have mapped."""
        usable = set(arena.extents)
        for process in self.processes.values():
            usable &= process.mapped
        return usable

    def unpublished_count(self) -> int:
        """Return how many slots are reserved, or in quarantine, under this lease."""
        return sum(each.published.count(0) for each in self.reservations.values())

    def change(self, change: str) -> LeaseChange:
        """Describe a change, with what the lease holds now."""
        pins, slots = len(self.pins), self.unpublished_count()
        return LeaseChange(self.lease_id, self.display_name, change, pins, slots)


class LeaseTable:
    """All leases that have not ended, and the tombstones of those that have."""

    def __init__(self, limits: Limits) -> None:
        self.leases: dict[bytes, Lease] = {}
        self.processes: dict[int, Process] = {}
        self.tombstones = Tombstones(limits.tombstone_ttl)
        self._limits = limits
        self._granted = 0

    def grant(self, caller: Caller, display_name: str, now: float) -> Lease:
        """Return the lease of the caller's id, made if it is new.

        Raises :class:`IdReused` (another secret), :class:`LeaseExpired`,
        :class:`QuotaExceeded` or Tombstoned.
        """
        lease = self.leases.get(caller.lease_id)
        if lease is not None:
            if not lease.knows(caller):
                raise IdReused(lease_id=caller.lease_id.hex())
            lease.require_active()
            return lease
        self.tombstones.require_none(caller.lease_id, lease_id=caller.lease_id.hex())
        tenant = caller.identity.tenant
        if sum(each.tenant == tenant for each in self.leases.values()) >= self._limits.max_leases:
            raise QuotaExceeded(quota="leases", maximum=self._limits.max_leases)
        self._granted += 1
        lease = Lease(self._granted, caller, display_name, self._limits, now)
        self.leases[lease.lease_id] = lease
        return lease

    def renew(self, lease: Lease, now: float) -> float:
        """Count the lease's TTL from now on and return it, in seconds."""
        lease.renewed_at = now
        return lease.ttl

    def find(self, caller: Caller) -> Lease:
        """Return the caller's lease; raises :class:`LeaseNotFound`.

        An unknown id and a wrong secret are told apart by nothing.
        """
        lease = self.leases.get(caller.lease_id)
        if lease is None or not lease.knows(caller):
            raise LeaseNotFound(lease_id=caller.lease_id.hex())
        return lease

    def bind(self, lease: Lease, process: Process) -> None:
        """Attach a process; raises :class:`QuotaExceeded`."""
        if len(lease.processes) >= self._limits.max_processes_per_lease:
            raise QuotaExceeded(
                quota="processes_per_lease", maximum=self._limits.max_processes_per_lease
            )
        lease.processes[process.process_id] = process
        self.processes[process.process_id] = process

    def unbind(self, process_id: int) -> Lease | None:
        """Forget a dead process and return its lease; None if it is not known."""
        process = self.processes.pop(process_id, None)
        if process is None:
            return None
        del process.lease.processes[process_id]
        return process.lease

    def remove(self, lease: Lease, now: float) -> None:
        """Forget a lease that ended, and leave a tombstone."""
        for process_id in list(lease.processes):
            self.unbind(process_id)
        del self.leases[lease.lease_id]
        self.tombstones.leave(lease.lease_id, now)

    def overdue(self, now: float) -> list[Lease]:
        """Return the active leases past their TTL."""
        active = (each for each in self.leases.values() if each.state is LeaseState.ACTIVE)
        return [each for each in active if each.renewed_at + each.ttl <= now]

    def visible(self, identity: Identity) -> list[Lease]:
        """Return the leases that an identity may see, by time of granting."""
        return [each for each in self.leases.values() if identity.sees(each.tenant)]
