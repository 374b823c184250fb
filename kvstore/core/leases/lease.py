"""A lease: the membership of a worker, and everything that it owns."""

from enum import Enum
from hmac import compare_digest
from typing import NamedTuple

from kvstore.core.leases.holds import Hold, Pin, Reservation, SourcePin
from kvstore.core.pool.arena import Arena
from kvstore.core.pool.namespace import Namespace
from kvstore.core.pool.pages import release, release_groups
from kvstore.core.pool.tenant import Tenant, TombstonesOf
from kvstore.core.values.counters import Counters
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Caller, MatchOptions, Sequence
from kvstore.core.values.slots import SlotState
from kvstore.errors import (
    InvalidField,
    LeaseExpired,
    NotAttached,
    PinNotFound,
    QuotaExceeded,
    ReservationNotFound,
    Tombstoned,
)


class LeaseState(Enum):
    """The states of a lease. A lease that ended is not in the table any more."""

    ACTIVE = 1
    EXPIRED = 2


class LeaseChange(NamedTuple):
    """A change of a lease, for the log: ``change`` is "expired", "returned" or "ended".

    The counts are those at the time of the change. "returned" means that a lease past its TTL
    gave back the last of its slots in quarantine by itself.
    """

    lease_id: bytes
    display_name: str
    change: str
    pin_count: int
    reserved_slot_count: int
    quarantined_slot_count: int


class Process:
    """A process attached under a lease, and the extents that it reported as mapped."""

    __slots__ = ("connected", "lease", "mapped", "pid", "process_id", "uid")

    def __init__(self, process_id: int, pid: int, uid: int, lease: "Lease") -> None:
        self.process_id = process_id
        self.pid = pid
        self.uid = uid
        self.lease = lease
        self.connected = True
        self.mapped: set[int] = set()


class Lease:
    """A worker's membership. Not thread-safe.

    ``number`` counts leases by granting, and ``owner`` is its tenant. A recovered lease is
    ``suspended`` until one of its processes attaches again.
    """

    def __init__(
        self,
        number: int,
        caller: Caller,
        display_name: str,
        owner: Tenant,
        *,
        limits: Limits,
        now: float,
    ) -> None:
        self.number = number
        self.owner = owner
        self.lease_id = caller.lease_id
        self.tenant = caller.identity.tenant
        self.display_name = display_name
        self.features: frozenset[str] = frozenset()
        self.state = LeaseState.ACTIVE
        self.suspended = False
        self.granted_at = now
        self.expired_at: float | None = None
        self.ttl = 0.0
        self.renewed_at = now
        self.processes: dict[int, Process] = {}
        self.arenas: dict[int, Arena] = {}
        self.pins: dict[int, Pin | SourcePin] = {}
        self.reservations: dict[int, Reservation] = {}
        self.pin_tombstones = TombstonesOf(owner.tombstones, (number, "pin"))
        self.reservation_tombstones = TombstonesOf(owner.tombstones, (number, "reservation"))
        self.counters = Counters()
        self.secret_digest = caller.secret_digest
        self._hold_number = 0
        self._max_holds = limits.max_holds_per_lease

    def knows(self, caller: Caller) -> bool:
        """Returns True if tenant and secret are this lease's, in constant time."""
        same = compare_digest(self.secret_digest, caller.secret_digest)
        return same and caller.identity.tenant == self.tenant

    @property
    def forsaken(self) -> bool:
        """True if its processes hung up, and nothing of it can be in use.

        That is so before it has memory, and in a recovered lease without pins and reservations that
        no process resumed: its worker is at another lease now. Memory that a process mapped under
        it is counted apart.
        """
        connected = any(each.connected for each in self.processes.values())
        if connected or not self.processes:
            return False
        return not self.arenas or (self.suspended and not (self.pins or self.reservations))

    def require_active(self) -> None:
        """Raises :class:`LeaseExpired` past the TTL."""
        if self.state is LeaseState.EXPIRED:
            raise LeaseExpired(lease_id=self.lease_id.hex())

    @property
    def slot_state(self) -> SlotState:
        """The state of the slots of its reservations: in quarantine, nobody is to write there."""
        quarantined = self.suspended or self.state is LeaseState.EXPIRED
        return SlotState.QUARANTINED if quarantined else SlotState.RESERVED

    def require_attached(self) -> None:
        """Raises :class:`NotAttached` unless a living process is attached."""
        if not self.processes or self.suspended:
            raise NotAttached(lease_id=self.lease_id.hex())

    def require_room(self, count: int) -> None:
        """Raises :class:`QuotaExceeded` if the lease or its tenant may not hold ``count`` more."""
        if len(self.pins) + len(self.reservations) + count > self._max_holds:
            raise QuotaExceeded(quota="holds_per_lease", maximum=self._max_holds)
        maximum = self.owner.quotas.pins
        if self.owner.hold_count + count > maximum:
            raise QuotaExceeded(quota="pins", maximum=maximum)

    def require_pins_alive(self, options: MatchOptions) -> None:
        """Raises Tombstoned if a pin that a match wants was released already."""
        tombstones = self.pin_tombstones
        # Without a source pin its id is None, which has no tombstone.
        for pin_id in (options.pin_id, options.source_pin_id):
            if (tombstones.scope, pin_id) in tombstones.until:
                raise Tombstoned(id=pin_id)

    def add_pin(self, pin: Pin | SourcePin) -> None:
        """Adds a pin, which holds all its pages already."""
        self._hold_number += 1
        pin.number = self._hold_number
        self.pins[pin.hold_id] = pin
        self.owner.hold_count += 1
        self.owner.group_page_count += len(pin.group_anchors)

    def drop_pin(self, pin: Pin | SourcePin) -> None:
        """Releases a pin."""
        del self.pins[pin.hold_id]
        self.owner.hold_count -= 1
        release(pin.anchors)
        if pin.group_anchors:
            self.owner.group_page_count -= len(pin.group_anchors)
            release_groups(pin.group_anchors)

    def add_reservation(self, reservation: Reservation) -> None:
        """Adds a reservation."""
        self._hold_number += 1
        reservation.number = self._hold_number
        reservation.lease_number = self.number
        self.reservations[reservation.hold_id] = reservation
        self.owner.hold_count += 1

    def drop_reservation(self, reservation: Reservation) -> None:
        """Ends a reservation: unpublished slots go back, and published pages stay."""
        del self.reservations[reservation.hold_id]
        self.owner.hold_count -= 1
        self.owner.group_page_count -= len(reservation.group_pages)
        reservation.drop_prefill()
        reservation.namespace.arena.recycle(reservation.unpublished(), self.slot_state)
        release(reservation.anchors)

    def pin(self, pin_id: int) -> Pin | SourcePin:
        """Returns a pin; raises :class:`PinNotFound`."""
        if pin_id not in self.pins:
            raise PinNotFound(pin_id=pin_id)
        return self.pins[pin_id]

    def reservation(self, reservation_id: int) -> Reservation:
        """Returns a reservation; raises :class:`ReservationNotFound` or Tombstoned."""
        if reservation_id not in self.reservations:
            self.reservation_tombstones.require_none(reservation_id, id=reservation_id)
            raise ReservationNotFound(reservation_id=reservation_id)
        return self.reservations[reservation_id]

    def base_of(self, namespace: Namespace, sequence: Sequence) -> Hold | None:
        """Returns the pin or reservation that a sequence names as its base.

        Raises PinNotFound, ReservationNotFound or Tombstoned. Raises InvalidField if the base
        belongs to another namespace.
        """
        base: Hold | None = None
        if sequence.base_pin_id is not None:
            base = self.pin(sequence.base_pin_id)
        elif sequence.base_reservation_id is not None:
            base = self.reservation(sequence.base_reservation_id)
        if base is not None and base.namespace is not namespace:
            raise InvalidField(field="base", value=base.hold_id, why="of another namespace")
        return base

    def has_all_of(self, arena: Arena) -> bool:
        """Returns True if all attached processes mapped all of ``arena``, and no extent retires."""
        owned = arena.extents.keys()
        if arena.retiring:
            return False
        for process in self.processes.values():  # noqa: SIM110  # each match asks
            if not owned <= process.mapped:
                return False
        return True

    def usable_extents(self, arena: Arena) -> set[int]:
        """Returns the lasting extents of ``arena`` that all attached processes have mapped."""
        usable = arena.lasting
        for process in self.processes.values():
            usable &= process.mapped
        return usable

    def quarantine(self) -> None:
        """Puts the slots of its reservations into quarantine, before its state says so."""
        self._change_slots(SlotState.QUARANTINED)

    def resume(self) -> None:
        """Gives a recovered lease the slots of its reservations back."""
        if self.suspended and self.state is LeaseState.ACTIVE:
            self._change_slots(SlotState.RESERVED)
        self.suspended = False

    def _change_slots(self, state: SlotState) -> None:
        before = self.slot_state
        for each in self.reservations.values():
            if before is not state:
                each.namespace.arena.change(each.unpublished(), before, state)

    def unpublished_count(self) -> int:
        """Returns how many slots are reserved, or in quarantine, under this lease."""
        return sum(each.own_count for each in self.reservations.values())

    def change(self, change: str) -> LeaseChange:
        """Returns a change, with the counts of what the lease holds now."""
        pins, slots = len(self.pins), self.unpublished_count()
        quarantined = self.slot_state is SlotState.QUARANTINED
        counts = (pins, 0, slots) if quarantined else (pins, slots, 0)
        return LeaseChange(self.lease_id, self.display_name, change, *counts)
