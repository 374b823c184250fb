"""What the cache machine does to a namespace that is deleted, and opened again."""

from kvstore import errors
from kvstore.core.values.events import Cause
from kvstore.core.values.requests import Removed, Sequence
from machine.state import COUNTS, OWNER, MachineState
from naive.holds import ModelLease


class DeleteRules(MachineState):
    """An operator deletes the namespace under everybody's hands."""

    def delete_namespace(self, opener: ModelLease) -> None:
        """Pages that are held stay until they are given back; then another one is opened."""
        COUNTS["delete_namespace"] += 1
        space = self.cache.namespaces[self.namespace_id]
        held_before = self.model.held_by_leases()
        gone = self.model.remove(b"")
        self.model.disk.forbid(b"")
        removed = self._thin(len(held_before) % 4)
        removed = removed.plus(self.cache.delete_namespace(OWNER, self.namespace_id))
        assert removed.evicted_page_count + removed.detached_page_count == gone
        kept = sum(prefix not in self.model.cached for prefix in held_before)
        assert removed.detached_page_count == kept
        self.laws.check()
        self._give_everything_back()
        self.laws.check()
        identity, layout, self.namespace_id = space.identity, space.layout, self._fresh_namespace()
        caller = self.caller(opener)
        self.cache.open_namespace(caller, identity, layout, self.namespace_id, self.now)

    def _thin(self, most: int) -> Removed:
        """Let a large one go in parts before the rest does; 0: all of it at once."""
        removed, cause = Removed(0, 0), Cause.NAMESPACE_DELETED
        while most:
            part = self.cache.thin(OWNER, self.namespace_id, b"", most, cause)
            if part is None:
                break
            self.laws.check()
            removed = removed.plus(part)
        return removed

    def _give_everything_back(self) -> None:
        """What is held of it is of no use for new work, and is let go."""
        for lease in self.model.leases.values():
            caller = self.caller(lease)
            for reservation_id in lease.reservations if lease.processes else ():
                if not lease.expired:
                    more = Sequence(b"")
                    gone = errors.NamespaceNotFound
                    self.refused(gone, self.cache.insert, lease, reservation_id, more)
            self.cache.abort(caller, list(lease.reservations), self.now)
            lease.dead_reservations |= lease.reservations.keys()
            lease.reservations.clear()
            pins = [*lease.pins, *lease.sources]
            self.cache.release(caller, pins, self.now)
            lease.dead_pins |= lease.pins.keys()
            lease.pins.clear()
            lease.sources.clear()

    def _fresh_namespace(self) -> bytes:
        return self.fresh().to_bytes(16, "big")
