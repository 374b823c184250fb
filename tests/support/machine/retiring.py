"""The cache machine's rules about extents that go back."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore.core.values.requests import ReservationRequest
from machine.reserving import ReserveRules
from machine.state import COUNTS, SELDOM
from naive.holds import ModelLease


class RetireRules(ReserveRules):
    """Extents retire, empty, are unmapped by those who were given them, and are destroyed."""

    @precondition(lambda self: self.model.lasting)
    @rule(data=st.data(), seldom=SELDOM, late=st.booleans())
    def retire_extent(self, data: st.DataObject, *, seldom: bool, late: bool) -> None:
        """An extent retires: its pages leave the index, what is held of them stays.

        Perhaps it is one in which somebody just reserved slots, and publishes in them then.
        """
        if not seldom:
            return
        COUNTS["retire_extent"] += 1
        lasting = sorted(self.model.lasting)
        writer = self.member(data) if late and self.model.leases else None
        request = ReservationRequest(self.fresh(), 0, 2)
        if writer is None or not self.reserve_and_check(writer, [request]):
            self.retire(data, data.draw(st.sampled_from(lasting)))
            return
        [(extent_id, _), _] = writer.reservations[request.reservation_id].slots
        self.retire(data, extent_id)
        self.insert_late(writer, request.reservation_id)
        self.destroy_what_may_be()

    def insert_late(self, writer: ModelLease, reservation_id: int) -> None:
        """Publishes pages in slots of an extent that retires."""
        tokens = self.tokens([2, 3])
        self.insert_into(writer, reservation_id, tokens, None, self.argmax(tokens))

    def retire(self, data: st.DataObject, extent_id: int) -> None:
        """Retires an extent, after asking which is the cheapest of some."""
        tier = self.model.tiers[extent_id]
        lasting = sorted(self.model.lasting_in(tier))
        among = data.draw(st.sets(st.sampled_from(lasting)))
        cheapest = self.cache.cheapest_extent(tier, among)
        copies = self.model.in_tier(tier)
        pins = self.model.named.values()
        named = {copies[p][0] for pin in pins for p, _ in pin.path if p in copies}
        assert (cheapest in among - named) if among - named else cheapest is None
        held_before = self.model.held_by_leases()
        self.model.retiring.add(extent_id)
        gone = self.model.expel()
        removed = self.cache.retire_extent(tier, extent_id)
        assert removed.evicted_page_count + removed.detached_page_count == gone
        kept = sum(prefix not in self.model.cached for prefix in held_before)
        assert removed.detached_page_count == kept
        self.destroy_what_may_be()

    @precondition(lambda self: self.model.retiring)
    @rule(data=st.data(), answers=st.booleans())
    def destroy_extents(self, data: st.DataObject, *, answers: bool) -> None:
        """Some who were given what is empty unmap it; what nobody has any more is destroyed."""
        COUNTS["destroy_extents"] += 1
        if answers and self.model.given:
            process_id = data.draw(st.sampled_from(sorted(self.model.given)))
            told = self.cache.extents_to_unmap(process_id)
            assert set(told) == self.model.given[process_id] & self.emptied()
            self.unmap(process_id, told)
        self.destroy_what_may_be()

    def emptied(self) -> set[int]:
        """Returns the retiring extents of which nobody has a slot."""
        free = self.model.free_slots(retiring=True)
        counts = {each: sum(slot[0] == each for slot in free) for each in self.model.retiring}
        return {each for each, count in counts.items() if count == self.model.extents[each]}

    def destroy_what_may_be(self) -> None:
        """Tries to destroy all that retires: it goes where it is empty and nobody has it."""
        empty = self.emptied()
        assert set(self.cache.emptied_extents()) == empty
        for extent_id in sorted(self.model.retiring):
            living = any(extent_id in given for given in self.model.given.values())
            gone = extent_id in empty and not living
            assert self.cache.remove_extent(extent_id) == gone, "destroyed at another time"
            if gone:
                COUNTS["destroyed extents"] += 1
                self.model.retiring.remove(extent_id)
                del self.model.extents[extent_id], self.model.tiers[extent_id]

    @precondition(lambda self: self.departed())
    @rule(data=st.data())
    def die_after_its_lease(self, data: st.DataObject) -> None:
        """A process whose lease ended is proven dead: it has no memory mapped any more."""
        COUNTS["die_after_its_lease"] += 1
        process_id = data.draw(st.sampled_from(self.departed()))
        assert self.cache.process_died(process_id, self.now) == []
        del self.model.given[process_id]

    def departed(self) -> list[int]:
        """Returns the processes that may have memory mapped and belong to no lease."""
        members = {each for lease in self.model.leases.values() for each in lease.processes}
        return sorted(self.model.given.keys() - members)

    def unmap(self, process_id: int, extent_ids: list[int]) -> None:
        """A process says that it unmapped extents."""
        self.cache.unmapped(process_id, extent_ids)
        for lease in self.model.leases.values():
            if process_id in lease.processes:
                lease.processes[process_id].difference_update(extent_ids)
        self.model.given[process_id].difference_update(extent_ids)
        if not self.model.given[process_id]:
            del self.model.given[process_id]
