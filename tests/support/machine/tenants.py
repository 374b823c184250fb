"""The cache machine's rules about another tenant."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from machine.state import COUNTS, MachineState


@precondition(lambda machine: machine.model.leases)
@rule(data=st.data())
def neighbour_arrives(machine: MachineState, data: st.DataObject) -> None:
    """The neighbour is granted a lease under an id that is in use by us."""
    COUNTS["neighbour_arrives"] += 1
    lease_id = data.draw(st.sampled_from(sorted(machine.model.leases)))
    machine.neighbour.arrive(lease_id, machine.fresh(), machine.now)


@precondition(lambda machine: machine.neighbour.leases)
@rule(data=st.data(), pages=st.integers(0, 3), leaves=st.booleans())
def neighbour_acts(machine: MachineState, data: st.DataObject, pages: int, *, leaves: bool) -> None:
    """It reserves some pages, or gives all back, its lease too perhaps."""
    COUNTS["neighbour_acts"] += 1
    lease_id = data.draw(st.sampled_from(sorted(machine.neighbour.leases)))
    if pages:
        machine.neighbour.reserve(lease_id, machine.fresh(), pages, machine.now)
    elif leaves:
        machine.neighbour.leave(lease_id, machine.now)
    else:
        machine.neighbour.abort(lease_id, machine.now)
