"""The cache machine's rules about who is in."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.values.requests import Caller
from machine.state import ADMIN, COUNTS, OWNER, SELDOM, MachineState
from naive.copies import FIRST
from naive.holds import ModelLease


class MemberRules(MachineState):
    """Workers arrive, renew, leave and die."""

    def open_and_map(self, lease: ModelLease) -> None:
        """Attaches a process to a lease, open the namespace and map what there is."""
        self.attach_one(lease)
        namespace = self.cache.namespaces[self.namespace_id]
        again = self.cache.open_namespace(
            self.caller(lease), namespace.identity, namespace.layout, b"x" * 16, self.now
        )
        assert again is namespace
        self.acknowledge_all(lease)

    def grant_one(self) -> ModelLease:
        """Grants a new lease."""
        lease_id = self.fresh().to_bytes(16, "little")
        lease = ModelLease(lease_id, b"secret" + lease_id, 10.0, self.now)
        caller = Caller(OWNER, lease_id, lease.secret, None)
        ttl = self.cache.grant(caller, ttl=None, display_name="w", features=(), now=self.now)
        assert ttl == lease.ttl
        self.model.leases[lease_id] = lease
        return lease

    def attach_one(self, lease: ModelLease) -> None:
        """Attaches a new process."""
        process_id = self.fresh()
        self.cache.bind(self.caller(lease), process_id=process_id, pid=process_id, uid=0)
        lease.processes[process_id] = set()

    def acknowledge_all(self, lease: ModelLease) -> None:
        """Let every process of a lease map what it is owed."""
        for process_id, mapped in lease.processes.items():
            owed = self.cache.extents_owed(process_id)
            self.cache.give_extents(process_id, owed)
            self.cache.acknowledge(process_id, owed)
            mapped |= set(owed)
            if owed:
                self.model.given.setdefault(process_id, set()).update(owed)

    def add_extent(self, tier: int = FIRST) -> None:
        """Gives the arena of a tier, which has the tier's number, more slots."""
        extent_id = self.fresh()
        slot_count = self.slot_count if tier == FIRST else self.lower_slot_count
        self.cache.add_extent(tier, extent_id, slot_count)
        self.model.extents[extent_id] = slot_count
        self.model.tiers[extent_id] = tier

    @precondition(lambda self: len(self.model.leases) < 3)
    @rule(bare=SELDOM)
    def grant(self, *, bare: bool) -> None:
        """A worker arrives; most attach, open the namespace and map."""
        COUNTS["grant"] += 1
        lease = self.grant_one()
        if not bare:
            self.open_and_map(lease)

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), another=SELDOM, grow=SELDOM)
    def map_memory(self, data: st.DataObject, *, another: bool, grow: bool) -> None:
        """A worker's processes map what they are owed; perhaps one more, or more memory, comes."""
        COUNTS["map_memory"] += 1
        lease = self.lease(data)
        self.acknowledge_all(lease)
        if another and not lease.expired and len(lease.processes) < 2:
            self.attach_one(lease)
        for tier in self.cache.state.tiers:
            if grow and len(self.model.lasting_in(tier)) < 3:
                self.add_extent(tier)

    @rule(seconds=st.sampled_from([1.0, 4.0, 11.0]), late=SELDOM)
    def advance(self, seconds: float, *, late: bool) -> None:
        """Time passes, workers renew if they are not late, and the reaper looks."""
        COUNTS["advance"] += 1
        self.now += seconds
        for lease in self.model.leases.values():
            if not late and not lease.expired:
                self.renew_one(lease)
        self.neighbour.renew(self.now)
        changes = {change.lease_id: change.change for change in self.cache.expire(self.now)}
        expected = {}
        for lease in list(self.model.leases.values()):
            if lease.renewed_at + lease.ttl <= self.now and not lease.expired:
                expected[lease.lease_id] = "expired" if lease.processes else "ended"
                if lease.processes:
                    lease.expired = True
                else:
                    self.model.end(lease)
        assert changes == expected

    def renew_one(self, lease: ModelLease) -> None:
        """A worker renews."""
        assert self.cache.renew(self.caller(lease), self.now) == lease.ttl
        lease.renewed_at = self.now

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data(), how=st.sampled_from(["dies", "dies", "revokes", "is expired", "stays"]))
    def leave(self, data: st.DataObject, how: str) -> None:
        """A process is proven dead, a worker revokes, or an admin expires it."""
        COUNTS["leave"] += 1
        lease = self.lease(data)
        if how == "dies" and lease.processes:
            self.die(lease, data.draw(st.sampled_from(sorted(lease.processes))))
        elif how == "revokes":
            self.cache.revoke(self.caller(lease), self.now)
            self.model.end(lease)
        elif how == "is expired":
            self.cache.revoke(Caller(ADMIN, lease.lease_id, b"other", None), self.now)
            # Both tenants chose this id.
            self.neighbour.leave(lease.lease_id, self.now)
            lease.expired = True
            if not lease.processes:
                self.model.end(lease)

    def die(self, lease: ModelLease, process_id: int) -> None:
        """A process is proven dead; with a worker's last one all it held goes back."""
        changes = self.cache.process_died(process_id, self.now)
        assert self.cache.process_died(process_id, self.now) == []
        del lease.processes[process_id]
        self.model.given.pop(process_id, None)
        assert [each.change for each in changes] == ([] if lease.processes else ["ended"])
        if not lease.processes:
            self.model.end(lease)

    @precondition(lambda self: self.model.ended)
    @rule(data=st.data())
    def speak_from_the_grave(self, data: st.DataObject) -> None:
        """A call of a lease that ended changes nothing, a grant under its id neither."""
        COUNTS["speak_from_the_grave"] += 1
        lease_id = data.draw(st.sampled_from(sorted(self.model.ended)))
        ghost = ModelLease(lease_id, b"secret" + lease_id, 10.0, self.now)
        self.refused(errors.LeaseNotFound, self.cache.release, ghost, [1])
        try:
            self.cache.grant(
                self.caller(ghost), ttl=None, display_name="", features=(), now=self.now
            )
        except errors.Tombstoned:
            return
        # The tombstone's time was over: a new lease like any other.
        self.model.ended.discard(lease_id)
        self.model.leases[lease_id] = ghost
