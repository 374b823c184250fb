"""The cache machine's rules about another tenant."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from machine.state import COUNTS, MachineState


class TenantRules(MachineState):
    """A neighbour comes and goes under lease ids of ours; neither notices the other."""

    @precondition(lambda self: self.model.leases)
    @rule(data=st.data())
    def neighbour_arrives(self, data: st.DataObject) -> None:
        """The neighbour is granted a lease under an id that is in use by us."""
        COUNTS["neighbour_arrives"] += 1
        lease_id = data.draw(st.sampled_from(sorted(self.model.leases)))
        self.neighbour.arrive(lease_id, self.fresh(), self.now)

    @precondition(lambda self: self.neighbour.leases)
    @rule(data=st.data(), pages=st.integers(0, 3), leaves=st.booleans())
    def neighbour_acts(self, data: st.DataObject, pages: int, *, leaves: bool) -> None:
        """It reserves some pages, or gives all back, its lease too perhaps."""
        COUNTS["neighbour_acts"] += 1
        lease_id = data.draw(st.sampled_from(sorted(self.neighbour.leases)))
        if pages:
            self.neighbour.reserve(lease_id, self.fresh(), pages, self.now)
        elif leaves:
            self.neighbour.leave(lease_id, self.now)
        else:
            self.neighbour.abort(lease_id, self.now)
