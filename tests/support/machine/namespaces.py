"""The cache machine's rules about a namespace that is deleted and opened again."""

from hypothesis import strategies as st
from hypothesis.stateful import rule

from kvstore import errors
from kvstore.core.values.event_log import Cause
from kvstore.core.values.requests import Removed, Sequence
from machine.state import COUNTS, OWNER, TAILS, MachineState
from naive.holds import ModelLease


def delete_namespace(machine: MachineState, opener: ModelLease) -> None:
    """Pages that are held stay until they are given back; then another one is opened."""
    COUNTS["delete_namespace"] += 1
    space = machine.cache.namespaces[machine.namespace_id]
    held_before, gone = machine.model.held_by_leases(), len(machine.model.cached)
    removed = remove_in_parts(machine, (0, 1, 3, 50)[len(held_before) % 4])
    machine.model.remove(b"")
    machine.model.disk.forbid(b"")
    for each in machine.model.disk.reads.values():
        # Nobody in the next namespace waits for them.
        each.planned.clear()
    removed = removed.plus(machine.cache.delete_namespace(OWNER, machine.namespace_id))
    assert removed.evicted_page_count + removed.detached_page_count == gone
    kept = sum(prefix not in machine.model.cached for prefix in held_before)
    assert removed.detached_page_count == kept
    machine.core_invariants.check()
    _give_everything_back(machine)
    machine.core_invariants.check()
    identity, layout, machine.namespace_id = space.identity, space.layout, _fresh_namespace(machine)
    caller = machine.caller(opener)
    machine.cache.open_namespace(caller, identity, layout, machine.namespace_id, machine.now)


def remove_in_parts(machine: MachineState, most: int) -> Removed:
    """Removes a large namespace in parts before the rest; 0 removes all of it at once."""
    removed, cause = Removed(0, 0), Cause.NAMESPACE_DELETED
    while most:
        part = machine.cache.thin(OWNER, machine.namespace_id, b"", most, cause)
        if part is None:
            break
        machine.core_invariants.check()
        before = len(machine.model.cached)
        machine.take_part()
        gone = before - len(machine.model.cached)
        assert gone == part.evicted_page_count + part.detached_page_count
        removed = removed.plus(part)
    return removed


def _give_everything_back(machine: MachineState) -> None:
    """Checks that its holds are of no use for new work, and releases them."""
    for lease in machine.model.leases.values():
        caller = machine.caller(lease)
        for reservation_id in lease.reservations if lease.processes else ():
            if not lease.expired:
                more = Sequence(b"")
                gone = errors.NamespaceNotFound
                machine.refused(gone, machine.cache.insert, lease, reservation_id, more)
        machine.cache.abort(caller, list(lease.reservations), machine.now)
        lease.dead_reservations |= lease.reservations.keys()
        lease.reservations.clear()
        pins = [*lease.pins, *lease.sources]
        machine.cache.release(caller, pins, machine.now)
        lease.dead_pins |= lease.pins.keys()
        lease.pins.clear()
        lease.sources.clear()


def _fresh_namespace(machine: MachineState) -> bytes:
    return machine.fresh().to_bytes(16, "big")


@rule(data=st.data(), tail=TAILS, everything=st.sampled_from([False] * 9 + [True]))
def evict_prefix(
    machine: MachineState, data: st.DataObject, tail: tuple[int, int], *, everything: bool
) -> None:
    """An operator removes a prefix: what is held of it is detached, the rest goes.

    Everything, perhaps, and the namespace with it.
    """
    COUNTS["evict_prefix"] += 1
    if everything and machine.model.leases and data.draw(st.booleans()):
        opener = machine.member(data)
        if opener is not None:
            delete_namespace(machine, opener)
        return
    tokens = b"" if everything else machine.sequence(data, [], tail)
    if not tokens and not everything:
        tokens = machine.tokens([0])
    held_before = machine.model.held_by_leases()
    gone = machine.model.remove(tokens)
    machine.model.disk.forbid(tokens)
    removed = machine.cache.evict_prefix(OWNER, machine.namespace_id, tokens)
    assert removed.evicted_page_count + removed.detached_page_count == gone
    kept = sum(prefix not in machine.model.cached for prefix in held_before)
    assert removed.detached_page_count == kept
