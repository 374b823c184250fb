"""The life of leases and their processes: grant, renew, expire, end."""

from collections.abc import Iterable

from kvstore.core.cache_state import CacheState
from kvstore.core.journal.journal import LEASE_NUMBERS
from kvstore.core.journal.rows import CounterRow, ProcessRow, Table
from kvstore.core.leases.journaling import lease_row
from kvstore.core.leases.lease import Lease, LeaseChange, LeaseState, Process
from kvstore.core.values.event_log import LeaseEvent, LeaseStep
from kvstore.core.values.limits import QuotaTable
from kvstore.core.values.requests import Caller
from kvstore.errors import InvalidField, LeaseNotFound


class Lifecycle:
    """Leases from their grant to their end, when everything that they own goes back."""

    def __init__(self, state: CacheState) -> None:
        self._state = state

    def change_rates(self, quotas: QuotaTable) -> None:
        """Takes over the request rates of ``quotas``. All other quotas stay as they are."""
        self._state.quotas = self._state.quotas.with_rates_of(quotas)
        self._state.table.take_rates(self._state.quotas)

    def grant(
        self,
        caller: Caller,
        *,
        ttl: float | None,
        display_name: str,
        features: Iterable[str],
        now: float,
    ) -> float:
        """Grants a lease, or renews the one of this id. Returns its TTL in seconds."""
        table, limits = self._state.table, self._state.limits
        known = table.lease_of(caller)
        lease = table.grant(caller, display_name, now)
        if lease is not known:
            self._note(lease, LeaseStep.GRANTED, now)
        wanted = limits.default_ttl if ttl is None else ttl
        lease.ttl = min(max(wanted, limits.min_ttl), limits.max_ttl)
        lease.features = frozenset(features)
        journal = self._state.journal
        if journal is not None:
            journal.put(Table.COUNTERS, LEASE_NUMBERS, CounterRow(table.granted_count))
            journal.put(Table.LEASES, lease.number, lease_row(lease))
        return table.renew(lease, now)

    def renew(self, caller: Caller, now: float) -> float:
        """Starts the TTL anew at ``now`` and returns it, in seconds."""
        lease = self._state.lease_of(caller)
        lease.require_active()
        return self._state.table.renew(lease, now)

    def revoke(self, caller: Caller, now: float) -> list[LeaseChange]:
        """Ends the caller's own lease. For an admin without its secret, expires it.

        As for :meth:`end`, ``return_holds`` may have to go on.

        An id that the caller's tenant does not know leaves a tombstone there, and the call
        succeeds. Tenants choose their ids, so an admin's revoke is for all that chose this.
        """
        table = self._state.table
        if caller.epoch is not None or not caller.identity.admin:
            self._state.require_epoch(caller.epoch)
        lease = table.lease_of(caller)
        if lease is not None and lease.knows(caller):
            for process in lease.processes.values():
                if not process.connected:
                    # It has no way left to report, and its lease reports that all is done.
                    self._state.mappings.forget(process.process_id)
            return self.end(lease, now)
        if caller.identity.admin:
            named = table.named(caller.lease_id)
            if named:
                changes = [change for each in named for change in self._expire_lease(each, now)]
                return [*changes, *self.return_holds()]
        elif lease is not None:
            raise LeaseNotFound(lease_id=caller.lease_id.hex())
        if self._state.journal is not None:
            self._state.journal.end_lease(caller.identity.tenant, caller.lease_id)
        table.leave_tombstone(caller, now)
        return []

    def expire(self, now: float) -> list[LeaseChange]:
        """Expires the leases past their TTL, drops old tombstones, and returns the changes.

        As for :meth:`end`, ``return_holds`` may have to go on.
        """
        self._state.events.now = now
        changes = []
        for lease in self._state.table.overdue(now):
            changes += self._expire_lease(lease, now)
        self._state.table.expire_tombstones(now)
        return [*changes, *self.return_holds()]

    def bind(self, caller: Caller, *, process_id: int, pid: int, uid: int) -> None:
        """Attaches a process to the caller's lease. The same number again reconnects it."""
        table = self._state.table
        lease = table.find(caller)
        lease.require_active()
        process = table.processes.get(process_id)
        if process is None:
            table.bind(lease, Process(process_id, pid, uid, lease))
            if self._state.journal is not None:
                row = ProcessRow(process_id, pid, uid, lease.number)
                self._state.journal.put(Table.PROCESSES, process_id, row)
        elif process.lease is not lease:
            raise InvalidField(field="process_id", value=process_id, why="bound to another lease")
        else:
            process.connected = True
        lease.resume()

    def give_extents(self, process_id: int, extent_ids: Iterable[int]) -> set[int]:
        """Records that a process is given extents, before it is. Returns those that it may map.

        Ignores unknown ones. From then on they outlive its lease, until it reports that it
        unmapped them or is proven dead.
        """
        process = self._state.table.processes.get(process_id)
        if process is None:
            return set()
        arenas = process.lease.arenas.values()
        known = {extent_id for arena in arenas for extent_id in arena.extents}
        given = known.intersection(extent_ids)
        self._state.mappings.give(process_id, process.pid, given)
        return given

    def acknowledge(self, process_id: int, extent_ids: Iterable[int]) -> None:
        """Records that a process has mapped extents. Ignores unknown ones."""
        self.give_extents(process_id, extent_ids)
        process = self._state.table.processes.get(process_id)
        if process is not None:
            process.mapped |= self._state.mappings.of(process_id).intersection(extent_ids)

    def unmapped(self, process_id: int, extent_ids: Iterable[int]) -> None:
        """Records that a process unmapped extents. Ignores unknown ones."""
        gone = set(extent_ids)
        self._state.mappings.take_back(process_id, gone)
        process = self._state.table.processes.get(process_id)
        if process is not None:
            process.mapped -= gone

    def extents_owed(self, process_id: int) -> list[int]:
        """Returns the lasting extents of its lease's arenas that a process has not mapped."""
        process = self._state.table.processes.get(process_id)
        if process is None:
            return []
        return [
            each
            for arena in process.lease.arenas.values()
            for each in arena.extents
            if each not in process.mapped and each not in arena.retiring
        ]

    def disconnected(self, process_id: int) -> None:
        """Records that an attach connection hung up while its process lives.

        After the end of the process's lease this means that nothing is mapped any more.
        """
        process = self._state.table.processes.get(process_id)
        if process is None:
            self._state.mappings.forget(process_id)
        else:
            process.connected = False

    def process_died(self, process_id: int, now: float) -> list[LeaseChange]:
        """Removes a process that is proven dead. The last process of a lease ends it.

        As for :meth:`end`, ``return_holds`` may have to go on.
        """
        self._state.mappings.forget(process_id)
        lease = self._state.table.unbind(process_id)
        if lease is not None and self._state.journal is not None:
            self._state.journal.clear(Table.PROCESSES, process_id)
        if lease is None or lease.processes:
            return []
        return self.end(lease, now)

    def end(self, lease: Lease, now: float) -> list[LeaseChange]:
        """Ends a lease: everything that it owns goes back, and its id leaves a tombstone.

        Nobody finds the lease any more. If it has many holds, only the first of them are back by
        now: :meth:`return_holds` returns the others, and the change once they are back.
        """
        self._end(lease, now)
        return self.return_holds()

    def return_holds(self) -> list[LeaseChange]:
        """Gives back some holds of leases that ended, about ``holds_at_once`` of them.

        MUST be called again while the table's ``ending`` has any lease. Returns the changes of
        those that hold nothing any more.
        """
        ending, most = self._state.table.ending, self._state.holds_at_once
        changes = []
        while ending and most > 0:
            most -= ending[0].give_back(most, self._state.journal)
            if ending[0].is_done:
                changes.append(ending.popleft().change())
        return changes

    def _end(self, lease: Lease, now: float) -> None:
        """Ends a lease, whose holds have still to go back."""
        self._note(lease, LeaseStep.ENDED, now)
        self._write_end(lease)
        self._state.ended.add(lease.counters)
        self._state.table.remove(lease, now)

    def _write_end(self, lease: Lease) -> None:
        """Writes to the journal that a lease ends. The first write is what ends the lease.

        A recovery does not have its holds from then on.
        """
        journal = self._state.journal
        if journal is None:
            return
        journal.clear(Table.LEASES, lease.number)
        journal.end_lease(lease.tenant, lease.lease_id)
        for process_id in lease.processes:
            journal.clear(Table.PROCESSES, process_id)

    def _note(self, lease: Lease, step: LeaseStep, now: float) -> None:
        log = self._state.events
        log.now = now
        log.note(LeaseEvent(now, lease.tenant, b"", step, lease.lease_id, lease.display_name))

    def _expire_lease(self, lease: Lease, now: float) -> list[LeaseChange]:
        """Ends a lease past its TTL. Quarantines it while a process may use its memory."""
        if not lease.processes or lease.forsaken:
            self._end(lease, now)
            return []
        if lease.state is LeaseState.EXPIRED:
            return []
        lease.quarantine()
        lease.state = LeaseState.EXPIRED
        lease.expired_at = now
        if self._state.journal is not None:
            self._state.journal.put(Table.LEASES, lease.number, lease_row(lease))
        self._note(lease, LeaseStep.EXPIRED, now)
        for each in lease.reservations.values():
            each.drop_prefill()
        return [lease.change("expired")]
