"""The cache machine's rules about who is in."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore import errors
from kvstore.core.leases.lease import LeaseChange
from kvstore.core.values.requests import Caller, Identity, MatchOptions, Sequence
from machine.state import ADMIN, COUNTS, EPOCH, OWNER, SELDOM, MachineState
from naive.copies import FIRST
from naive.holds import ModelLease


def open_and_map(machine: MachineState, lease: ModelLease) -> None:
    """Attaches a process to a lease, open the namespace and map what there is."""
    attach_one(machine, lease)
    namespace = machine.cache.namespaces[machine.namespace_id]
    again = machine.cache.open_namespace(
        machine.caller(lease), namespace.identity, namespace.layout, b"x" * 16, machine.now
    )
    assert again is namespace
    acknowledge_all(machine, lease)


def grant_one(machine: MachineState) -> ModelLease:
    """Grants a new lease."""
    lease_id = machine.fresh().to_bytes(16, "little")
    lease = ModelLease(lease_id, b"secret" + lease_id, 10.0, machine.now)
    caller = Caller(OWNER, lease_id, lease.secret, None)
    ttl = machine.cache.grant(caller, ttl=None, display_name="w", features=(), now=machine.now)
    assert ttl == lease.ttl
    machine.model.leases[lease_id] = lease
    return lease


def attach_one(machine: MachineState, lease: ModelLease) -> None:
    """Attaches a new process."""
    process_id = machine.fresh()
    machine.cache.bind(machine.caller(lease), process_id=process_id, pid=process_id, uid=0)
    lease.processes[process_id] = set()


def acknowledge_all(machine: MachineState, lease: ModelLease) -> None:
    """Maps the extents that each process of a lease is owed."""
    for process_id, mapped in lease.processes.items():
        owed = machine.cache.extents_owed(process_id)
        machine.cache.give_extents(process_id, owed)
        machine.cache.acknowledge(process_id, owed)
        mapped |= set(owed)
        if owed:
            machine.model.given.setdefault(process_id, set()).update(owed)


def add_extent(machine: MachineState, tier: int = FIRST) -> None:
    """Gives the arena of a tier, which has the tier's number, more slots."""
    extent_id = machine.fresh()
    slot_count = machine.slot_count if tier == FIRST else machine.lower_slot_count
    machine.cache.add_extent(tier, extent_id, slot_count)
    machine.model.extents[extent_id] = slot_count
    machine.model.tiers[extent_id] = tier


@precondition(lambda machine: len(machine.model.leases) < 3)
@rule(bare=SELDOM)
def grant(machine: MachineState, *, bare: bool) -> None:
    """A worker arrives; most attach, open the namespace and map."""
    COUNTS["grant"] += 1
    lease = grant_one(machine)
    if not bare:
        open_and_map(machine, lease)


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), another=SELDOM, grow=SELDOM)
def map_memory(machine: MachineState, data: st.DataObject, *, another: bool, grow: bool) -> None:
    """A worker's processes map what they are owed; perhaps one more, or more memory, comes."""
    COUNTS["map_memory"] += 1
    lease = machine.lease(data)
    acknowledge_all(machine, lease)
    if another and not lease.expired and len(lease.processes) < 2:
        attach_one(machine, lease)
    for tier in machine.cache.state.tiers:
        if grow and len(machine.model.lasting_in(tier)) < 3:
            add_extent(machine, tier)


@rule(seconds=st.sampled_from([1.0, 4.0, 11.0]), late=SELDOM)
def advance(machine: MachineState, seconds: float, *, late: bool) -> None:
    """Time passes, workers renew if they are not late, and the reaper looks."""
    COUNTS["advance"] += 1
    machine.now += seconds
    for lease in machine.model.leases.values():
        if not late and not lease.expired:
            renew_one(machine, lease)
    machine.neighbour.renew(machine.now)
    ended = all_back(machine, machine.cache.expire(machine.now))
    changes = {change.lease_id: change.change for change in ended}
    expected = {}
    for lease in list(machine.model.leases.values()):
        if lease.renewed_at + lease.ttl <= machine.now and not lease.expired:
            expected[lease.lease_id] = "expired" if lease.processes else "ended"
            if lease.processes:
                lease.expired = True
            else:
                machine.model.end(lease)
    assert changes == expected


def renew_one(machine: MachineState, lease: ModelLease) -> None:
    """A worker renews."""
    assert machine.cache.renew(machine.caller(lease), machine.now) == lease.ttl
    lease.renewed_at = machine.now


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data(), how=st.sampled_from(["dies", "dies", "revokes", "is expired", "stays"]))
def leave(machine: MachineState, data: st.DataObject, how: str) -> None:
    """A process is proven dead, a worker revokes, or an admin expires it."""
    COUNTS["leave"] += 1
    lease = machine.lease(data)
    if how == "dies" and lease.processes:
        die(machine, lease, data.draw(st.sampled_from(sorted(lease.processes))))
    elif how == "revokes":
        all_back(machine, machine.cache.revoke(machine.caller(lease), machine.now))
        machine.model.end(lease)
    elif how == "is expired":
        admin = Caller(ADMIN, lease.lease_id, b"other", None)
        all_back(machine, machine.cache.revoke(admin, machine.now))
        # Both tenants chose this id.
        machine.neighbour.leave(lease.lease_id, machine.now)
        lease.expired = True
        if not lease.processes:
            machine.model.end(lease)


def die(machine: MachineState, lease: ModelLease, process_id: int) -> None:
    """A process is proven dead; with a worker's last one all it held goes back."""
    changes = all_back(machine, machine.cache.process_died(process_id, machine.now))
    assert machine.cache.process_died(process_id, machine.now) == []
    del lease.processes[process_id]
    machine.model.given.pop(process_id, None)
    assert [each.change for each in changes] == ([] if lease.processes else ["ended"])
    if not lease.processes:
        machine.model.end(lease)


def all_back(machine: MachineState, changes: list[LeaseChange]) -> list[LeaseChange]:
    """Gives back all that ended leases held, a hold at a time; returns all changes."""
    while machine.cache.table.ending:
        machine.core_invariants.check()
        changes = [*changes, *machine.cache.return_holds()]
    return changes


@precondition(lambda machine: machine.model.ended)
@rule(data=st.data())
def speak_from_the_grave(machine: MachineState, data: st.DataObject) -> None:
    """A call of a lease that ended changes nothing, a grant under its id neither."""
    COUNTS["speak_from_the_grave"] += 1
    lease_id = data.draw(st.sampled_from(sorted(machine.model.ended)))
    ghost = ModelLease(lease_id, b"secret" + lease_id, 10.0, machine.now)
    machine.refused(errors.LeaseNotFound, machine.cache.release, ghost, [1])
    try:
        machine.cache.grant(
            machine.caller(ghost), ttl=None, display_name="", features=(), now=machine.now
        )
    except errors.Tombstoned:
        return
    # The tombstone's time was over: a new lease like any other.
    machine.model.ended.discard(lease_id)
    machine.model.leases[lease_id] = ghost


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data())
def speak_wrongly(machine: MachineState, data: st.DataObject) -> None:
    """Another epoch, secret or tenant changes nothing, nor a match after its release."""
    COUNTS["speak_wrongly"] += 1
    lease = machine.lease(data)
    if lease.processes and not lease.expired:
        pin_id = machine.fresh()
        machine.cache.release(machine.caller(lease), [pin_id], machine.now)
        late = Sequence(machine.tokens([0, 0]))
        machine.refused(
            errors.Tombstoned,
            machine.cache.match,
            lease,
            machine.namespace_id,
            late,
            MatchOptions(pin_id),
        )
    for caller, error in (
        (Caller(OWNER, lease.lease_id, lease.secret, EPOCH + 1), errors.StaleEpoch),
        (Caller(OWNER, lease.lease_id, b"guess", EPOCH), errors.LeaseNotFound),
        (Caller(Identity("b"), lease.lease_id, lease.secret, EPOCH), errors.LeaseNotFound),
    ):
        try:
            machine.cache.release(caller, list(lease.pins), machine.now)
        except error:
            continue
        raise AssertionError(f"{error.__name__} was not raised")
