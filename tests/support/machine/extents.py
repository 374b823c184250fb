"""The cache machine's rules about extents that go back."""

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from kvstore.core.index.removal import ALL, NODE_WORK
from kvstore.core.values.requests import ReservationRequest
from kvstore.core.verbs.reclaim import LOOK_WORK
from machine.inserts import argmax, insert_into
from machine.reservations import reserve_and_check
from machine.state import COUNTS, SELDOM, MachineState
from naive.holds import ModelLease

# The work of a part of a retirement.
PARTS = st.sampled_from([1, 20, 50, ALL])
# A part of so much work is over once anything was removed.
ONE_REMOVAL = LOOK_WORK + NODE_WORK + 1


@precondition(lambda machine: machine.model.lasting)
@rule(data=st.data(), seldom=SELDOM, late=st.booleans())
def retire_extent(machine: MachineState, data: st.DataObject, *, seldom: bool, late: bool) -> None:
    """An extent retires: its pages leave the index, what is held of them stays.

    Perhaps it is one in which somebody just reserved slots, and publishes in them then.
    """
    if not seldom:
        return
    COUNTS["retire_extent"] += 1
    lasting = sorted(machine.model.lasting)
    writer = machine.member(data) if late and machine.model.leases else None
    request = ReservationRequest(machine.fresh(), 0, 2)
    if writer is None or not reserve_and_check(machine, writer, [request]):
        retire(machine, data, data.draw(st.sampled_from(lasting)))
        return
    [(extent_id, _), _] = writer.reservations[request.reservation_id].slots
    retire(machine, data, extent_id)
    insert_late(machine, writer, request.reservation_id)
    destroy_what_may_be(machine)


def insert_late(machine: MachineState, writer: ModelLease, reservation_id: int) -> None:
    """Publishes pages in slots of an extent that retires."""
    tokens = machine.tokens([2, 3])
    insert_into(machine, writer, reservation_id, tokens, None, argmax(tokens))


def retire(machine: MachineState, data: st.DataObject, extent_id: int) -> None:
    """Retires an extent, after asking which is the cheapest of some."""
    tier = machine.model.tiers[extent_id]
    lasting = sorted(machine.model.lasting_in(tier))
    among = data.draw(st.sets(st.sampled_from(lasting)))
    survey, most = machine.cache.survey(tier, among), data.draw(PARTS)
    while survey.go_on(most):
        pass
    cheapest = survey.cheapest
    assert cheapest == machine.cache.cheapest_extent(tier, among)
    copies = machine.model.in_tier(tier)
    pins = machine.model.named.values()
    named = {copies[p][0] for pin in pins for p, _ in pin.path if p in copies}
    assert (cheapest in among - named) if among - named else cheapest is None
    held_before = machine.model.held_by_leases()
    machine.model.retiring.add(extent_id)
    every, gone = set(machine.model.cached), machine.model.retired()
    retirement = machine.cache.begin_retirement(tier, extent_id)
    while retirement.go_on(followed(machine, most)):
        COUNTS["parts of retirements"] += 1
        machine.take_part()
        machine.core_invariants.check()
    machine.take_part()
    assert machine.model.cached.keys() == every - gone, "other pages than the extent's went"
    removed = retirement.removed
    assert removed.evicted_page_count + removed.detached_page_count == len(gone)
    kept = sum(prefix not in machine.model.cached for prefix in held_before)
    assert removed.detached_page_count == kept
    destroy_what_may_be(machine)


def followed(machine: MachineState, most: int) -> int:
    """Returns the work of a part, or so much less that the model can follow it.

    In two tiers it matters which pages of a path go at once.
    """
    return min(most, ONE_REMOVAL) if machine.has_tiers and most < ALL else most


@precondition(lambda machine: machine.model.retiring)
@rule(data=st.data(), answers=st.booleans())
def destroy_extents(machine: MachineState, data: st.DataObject, *, answers: bool) -> None:
    """Some who were given what is empty unmap it; what nobody has any more is destroyed."""
    COUNTS["destroy_extents"] += 1
    if answers and machine.model.given:
        process_id = data.draw(st.sampled_from(sorted(machine.model.given)))
        told = machine.cache.extents_to_unmap(process_id)
        assert set(told) == machine.model.given[process_id] & emptied(machine)
        unmap(machine, process_id, told)
    destroy_what_may_be(machine)


def emptied(machine: MachineState) -> set[int]:
    """Returns the retiring extents of which nobody has a slot."""
    free = machine.model.free_slots(retiring=True)
    counts = {each: sum(slot[0] == each for slot in free) for each in machine.model.retiring}
    return {each for each, count in counts.items() if count == machine.model.extents[each]}


def destroy_what_may_be(machine: MachineState) -> None:
    """Tries to destroy all that retires: it goes where it is empty and nobody has it."""
    empty = emptied(machine)
    assert set(machine.cache.emptied_extents()) == empty
    for extent_id in sorted(machine.model.retiring):
        living = any(extent_id in given for given in machine.model.given.values())
        gone = extent_id in empty and not living
        assert machine.cache.remove_extent(extent_id) == gone, "destroyed at another time"
        if gone:
            COUNTS["destroyed extents"] += 1
            machine.model.retiring.remove(extent_id)
            del machine.model.extents[extent_id], machine.model.tiers[extent_id]


@precondition(lambda machine: bool(departed(machine)))
@rule(data=st.data())
def die_after_its_lease(machine: MachineState, data: st.DataObject) -> None:
    """A process whose lease ended is proven dead: it has no memory mapped any more."""
    COUNTS["die_after_its_lease"] += 1
    process_id = data.draw(st.sampled_from(departed(machine)))
    assert machine.cache.process_died(process_id, machine.now) == []
    del machine.model.given[process_id]


def departed(machine: MachineState) -> list[int]:
    """Returns the processes that may have memory mapped and belong to no lease."""
    members = {each for lease in machine.model.leases.values() for each in lease.processes}
    return sorted(machine.model.given.keys() - members)


def unmap(machine: MachineState, process_id: int, extent_ids: list[int]) -> None:
    """A process says that it unmapped extents."""
    machine.cache.unmapped(process_id, extent_ids)
    for lease in machine.model.leases.values():
        if process_id in lease.processes:
            lease.processes[process_id].difference_update(extent_ids)
    machine.model.given[process_id].difference_update(extent_ids)
    if not machine.model.given[process_id]:
        del machine.model.given[process_id]
