"""Release and abort: pins and reservations that their lease gives back."""

from collections.abc import Sequence as Items

from kvstore.core.cache_state import CacheState
from kvstore.core.leases.lease import LeaseChange, LeaseState
from kvstore.core.values.requests import Caller
from kvstore.errors import LimitExceeded


class Releasing:
    """Gives back pins and reservations. Each id leaves a tombstone, known or not."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def release(self, caller: Caller, pin_ids: Items[int], now: float) -> None:
        """Releases pins. An unknown id succeeds."""
        lease = self._state.lease_of(caller)
        if len(pin_ids) > self._state.limits.max_batch_size:
            require_batch(self._state, pin_ids)
        journal = self._state.journal
        for pin_id in pin_ids:
            lease.pin_tombstones.leave(pin_id, now)
            pin = lease.pins.get(pin_id)
            if journal is not None:
                journal.release(lease.number, pin_id)
            if pin is not None:
                lease.drop_pin(pin)

    def abort(self, caller: Caller, reservation_ids: Items[int], now: float) -> list[LeaseChange]:
        """Ends reservations. An unknown id succeeds.

        Returns the change if that ended a quarantine.
        """
        lease = self._state.lease_of(caller)
        require_batch(self._state, reservation_ids)
        quarantined = lease.change("returned") if lease.state is LeaseState.EXPIRED else None
        journal = self._state.journal
        for reservation_id in reservation_ids:
            lease.reservation_tombstones.leave(reservation_id, now)
            known = lease.reservations.get(reservation_id)
            if journal is not None:
                place = None if known is None else known.written_at
                journal.abort(lease.number, reservation_id, place)
            if known is not None:
                lease.drop_reservation(known)
        if quarantined is None or not quarantined.quarantined_slot_count:
            return []
        return [] if lease.unpublished_count() else [quarantined]


def require_batch(state: CacheState, items: Items[object]) -> None:
    """Raises LimitExceeded if one call names more than ``max_batch_size`` items."""
    maximum = state.limits.max_batch_size
    if len(items) > maximum:
        raise LimitExceeded(limit="max_batch_size", maximum=maximum, value=len(items))
