"""The end of a lease: its holds go back a part at a time, so that calls get in between."""

from kvstore.core.journal.journal import Journal
from kvstore.core.leases.lease import Lease, LeaseChange
from kvstore.core.values.slots import SlotState

# A reservation is the work of two pins, and of one more for each so many slots
# (benchmarks/results/0052-background-work-gives-way.md).
RESERVATION_WORK, SLOTS_A_HOLD = 2, 16


class EndedLease:
    """A lease that ended and what it still holds. Not thread-safe.

    Nobody finds the lease any more, and a journal does not have it, so a recovery returns all of
    its holds. Until they go back, they protect their pages and slots as before.
    """

    def __init__(self, lease: Lease) -> None:
        """``lease`` MUST NOT get any more holds."""
        self.lease = lease
        self._pins = list(lease.pins.values())
        self._reservations = list(lease.reservations.values())
        self._pin_count = len(self._pins)
        self._slot_count = 0

    @property
    def is_done(self) -> bool:
        """True if it holds nothing any more."""
        return not (self._pins or self._reservations)

    def give_back(self, most: int, journal: Journal | None) -> int:
        """Gives back holds of about ``most`` work, and reservations first; returns the work.

        The work is in pins. Others may lack the slots of reservations.
        """
        lease, work = self.lease, 0
        while self._reservations and work < most:
            reservation = self._reservations.pop()
            slots = reservation.own_count
            if journal is not None:
                journal.withdraw(lease.number, reservation.hold_id)
            lease.drop_reservation(reservation)
            self._slot_count += slots
            work += RESERVATION_WORK + slots // SLOTS_A_HOLD
        while self._pins and work < most:
            pin = self._pins.pop()
            if journal is not None:
                journal.drop(lease.number, pin.hold_id)
            lease.drop_pin(pin)
            work += 1
        return work

    def change(self) -> LeaseChange:
        """Returns the change for the log, with the counts of all that it held at its end."""
        lease, slots = self.lease, self._slot_count
        quarantined = lease.slot_state is SlotState.QUARANTINED
        counts = (0, slots) if quarantined else (slots, 0)
        return LeaseChange(lease.lease_id, lease.display_name, "ended", self._pin_count, *counts)
