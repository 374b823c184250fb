"""Who is in: granting, renewing, expiring and ending leases and their processes."""

from collections.abc import Iterable

from kvstore.core.handouts import Handouts
from kvstore.core.holds import Pin, Reservation, SourcePin
from kvstore.core.lease import Lease, LeaseChange, LeaseState, Process
from kvstore.core.lease_table import LeaseTable
from kvstore.core.pages import release
from kvstore.core.values.counters import Counters
from kvstore.core.values.events import EventLog, LeaseEvent, LeaseStep
from kvstore.core.values.limits import Limits, QuotaTable
from kvstore.core.values.requests import Caller
from kvstore.core.values.slots import SlotState
from kvstore.errors import InvalidField, LeaseNotFound, StaleEpoch


class Membership:
    """Leases through their life; when one ends, all that it owned goes back here.

    Not thread-safe. ``ended`` sums the counters of leases that ended, so that
    sums over leases stay equal to the totals. Without ``quotas`` all tenants have
    the default ones.
    """

    def __init__(self, epoch: int, limits: Limits, quotas: QuotaTable | None = None) -> None:
        self.epoch = epoch
        self.quotas = QuotaTable() if quotas is None else quotas
        self.table = LeaseTable(limits, self.quotas)
        self.ended = Counters()
        self.handouts = Handouts()
        self.events = EventLog(limits)
        self._limits = limits

    def require_epoch(self, epoch: int | None) -> None:
        """Raise :class:`StaleEpoch` if a request speaks of another epoch."""
        if epoch != self.epoch:
            raise StaleEpoch(store_epoch=self.epoch, request_epoch=epoch)

    def change_rates(self, quotas: QuotaTable) -> None:
        """Let tenants ask as often as ``quotas`` says; what they may have stays as it is."""
        self.quotas = self.quotas.with_rates_of(quotas)
        self.table.take_rates(self.quotas)

    def lease_of(self, caller: Caller) -> Lease:
        """Return the caller's lease, past its TTL or not.

        Raises :class:`StaleEpoch` or :class:`LeaseNotFound`.
        """
        if caller.epoch != self.epoch:
            self.require_epoch(caller.epoch)
        return self.table.find(caller)

    def member(self, caller: Caller) -> Lease:
        """Return the caller's lease, which may take part in the request path.

        Raises, besides those of :meth:`lease_of`, LeaseExpired or NotAttached.
        """
        if caller.epoch != self.epoch:
            self.require_epoch(caller.epoch)
        lease = self.table.find(caller)
        if lease.state is LeaseState.EXPIRED or not lease.processes:
            lease.require_active()
            lease.require_attached()
        return lease

    def grant(
        self,
        caller: Caller,
        *,
        ttl: float | None,
        display_name: str,
        features: Iterable[str],
        now: float,
    ) -> float:
        """Grant a lease, or answer the one of this id, renewed; return its TTL in seconds."""
        known = self.table.lease_of(caller)
        lease = self.table.grant(caller, display_name, now)
        if lease is not known:
            self._note(lease, LeaseStep.GRANTED, now)
        wanted = self._limits.default_ttl if ttl is None else ttl
        lease.ttl = min(max(wanted, self._limits.min_ttl), self._limits.max_ttl)
        lease.features = frozenset(features)
        return self.table.renew(lease, now)

    def renew(self, caller: Caller, now: float) -> float:
        """Count the TTL from ``now`` on and return it, in seconds."""
        lease = self.lease_of(caller)
        lease.require_active()
        return self.table.renew(lease, now)

    def revoke(self, caller: Caller, now: float) -> list[LeaseChange]:
        """End the caller's own lease; from an admin without its secret, expire it.

        An id that is unknown to the caller's tenant leaves a tombstone there and
        succeeds. Tenants choose their ids: an admin's revoke is for all that chose this.
        """
        if caller.epoch is not None or not caller.identity.admin:
            self.require_epoch(caller.epoch)
        lease = self.table.lease_of(caller)
        if lease is not None and lease.knows(caller):
            for process in lease.processes.values():
                if not process.connected:
                    # It has no way left to say more, and its lease says that all is done.
                    self.handouts.forget(process.process_id)
            return [self.end(lease, now)]
        if caller.identity.admin:
            named = self.table.named(caller.lease_id)
            if named:
                return [change for each in named for change in self._expire_lease(each, now)]
        elif lease is not None:
            raise LeaseNotFound(lease_id=caller.lease_id.hex())
        self.table.leave_tombstone(caller, now)
        return []

    def expire(self, now: float) -> list[LeaseChange]:
        """Expire the leases past their TTL, drop old tombstones, and say what changed."""
        self.events.now = now
        changes = []
        for lease in self.table.overdue(now):
            changes += self._expire_lease(lease, now)
        self.table.expire_tombstones(now)
        return changes

    def bind(self, caller: Caller, *, process_id: int, pid: int, uid: int) -> None:
        """Attach a process to the caller's lease; again under the same number: reconnected."""
        lease = self.table.find(caller)
        lease.require_active()
        process = self.table.processes.get(process_id)
        if process is None:
            self.table.bind(lease, Process(process_id, pid, uid, lease))
        elif process.lease is not lease:
            raise InvalidField(field="process_id", value=process_id, why="bound to another lease")
        else:
            process.connected = True

    def give_extents(self, process_id: int, extent_ids: Iterable[int]) -> None:
        """Note that a process is given extents, before it is; unknown ones are ignored.

        From then on they are not destroyed before it says that it unmapped them, or is
        proven dead, whatever becomes of its lease.
        """
        process = self.table.processes.get(process_id)
        if process is not None:
            arenas = process.lease.arenas.values()
            known = {extent_id for arena in arenas for extent_id in arena.extents}
            self.handouts.give(process_id, process.pid, known.intersection(extent_ids))

    def acknowledge(self, process_id: int, extent_ids: Iterable[int]) -> None:
        """Note that a process has mapped extents; unknown ones are ignored."""
        self.give_extents(process_id, extent_ids)
        process = self.table.processes.get(process_id)
        if process is not None:
            process.mapped |= self.handouts.of(process_id).intersection(extent_ids)

    def unmapped(self, process_id: int, extent_ids: Iterable[int]) -> None:
        """Note that a process has extents mapped no more; unknown ones are ignored."""
        gone = set(extent_ids)
        self.handouts.take_back(process_id, gone)
        process = self.table.processes.get(process_id)
        if process is not None:
            process.mapped -= gone

    def extents_owed(self, process_id: int) -> list[int]:
        """Return the lasting extents of its lease's arenas that a process has not acknowledged."""
        process = self.table.processes.get(process_id)
        if process is None:
            return []
        return [
            each
            for arena in process.lease.arenas.values()
            for each in arena.extents
            if each not in process.mapped and each not in arena.retiring
        ]

    def disconnected(self, process_id: int) -> None:
        """Note that an attach connection hung up while its process lives.

        After the end of its lease that says that nothing is mapped any more.
        """
        process = self.table.processes.get(process_id)
        if process is None:
            self.handouts.forget(process_id)
        else:
            process.connected = False

    def process_died(self, process_id: int, now: float) -> list[LeaseChange]:
        """Forget a process proven dead; the last of a lease ends it."""
        self.handouts.forget(process_id)
        lease = self.table.unbind(process_id)
        if lease is None or lease.processes:
            return []
        return [self.end(lease, now)]

    def end(self, lease: Lease, now: float) -> LeaseChange:
        """End a lease: everything that it owns goes back, and its id leaves a tombstone."""
        change = lease.change("ended")
        self._note(lease, LeaseStep.ENDED, now)
        for pin in list(lease.pins.values()):
            self.drop_pin(lease, pin)
        for reservation in list(lease.reservations.values()):
            self.drop_reservation(lease, reservation)
        self.ended.add(lease.counters)
        self.table.remove(lease, now)
        return change

    def drop_pin(self, lease: Lease, pin: Pin | SourcePin) -> None:
        """Release a pin."""
        lease.drop_pin(pin)
        release(pin.anchors)

    def drop_reservation(self, lease: Lease, reservation: Reservation) -> None:
        """End a reservation: unpublished slots go back, published pages stay."""
        lease.drop_reservation(reservation)
        reservation.drop_prefill()
        expired = lease.state is LeaseState.EXPIRED
        state = SlotState.QUARANTINED if expired else SlotState.RESERVED
        reservation.namespace.arena.recycle(reservation.unpublished(), state)
        release(reservation.anchors)

    def _note(self, lease: Lease, step: LeaseStep, now: float) -> None:
        log = self.events
        log.now = now
        log.note(LeaseEvent(now, lease.tenant, b"", step, lease.lease_id, lease.display_name))

    def _expire_lease(self, lease: Lease, now: float) -> list[LeaseChange]:
        """Past the TTL: the end, unless a process might use what it was given; else quarantine."""
        if not lease.processes or lease.forsaken:
            return [self.end(lease, now)]
        if lease.state is LeaseState.EXPIRED:
            return []
        lease.state = LeaseState.EXPIRED
        lease.expired_at = now
        self._note(lease, LeaseStep.EXPIRED, now)
        for each in lease.reservations.values():
            each.drop_prefill()
            arena = each.namespace.arena
            arena.change(each.unpublished(), SlotState.RESERVED, SlotState.QUARANTINED)
        return [lease.change("expired")]
