"""The laws of a cache's slots, counters and leases: each is seen to be broken.

The laws of trees and holds are in test_trees.py.
"""

from array import array

import pytest

from core.core_builders import OWNER, CoreWorld, make_layout, node_at
from kvstore.core.invariants.check import Invariants
from kvstore.core.invariants.invariant import InvariantBroken
from kvstore.core.leases.lease import Process
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Quotas
from kvstore.core.values.requests import Caller, ReservationRequest
from kvstore.core.values.slots import SlotState


def two_arenas() -> CoreWorld:
    """Returns a world with pages cached, pinned, detached and reserved in each of two arenas."""
    world = CoreWorld(slots=16)
    worker, identity = world.worker, NamespaceIdentity(b"larger")
    layout = make_layout(page_bytes=128)
    world.cache.open_namespace(worker.caller, identity, layout, b"larger", world.now)
    world.cache.add_extent(2, 2, 16)
    worker.map_memory()
    for reservation_id, namespace_id in ((1, world.namespace.namespace_id), (2, b"larger")):
        request = ReservationRequest(reservation_id, 0, 6)
        world.cache.reserve(worker.caller, namespace_id, [request], world.now)
        worker.insert(reservation_id, "abcd")
        world.cache.evict_prefix(OWNER, namespace_id, worker.sequence("abc").tokens[:-4])
    return world


def broken(world: CoreWorld) -> str:
    """Checks the laws and returns the sentence of the one that does not hold."""
    with pytest.raises(InvariantBroken) as error:
        world.laws.check()
    return str(error.value)


def test_a_sound_cache_keeps_every_law() -> None:
    """With pages in every state, two arenas, expiry and the end of a lease, all laws hold."""
    world = two_arenas()
    world.laws.check()
    world.join("other").match("ab", 1)
    world.cache.expire(world.now + 5)
    world.cache.renew(world.join("third").caller, world.now + 9)
    world.laws.check()
    world.cache.expire(world.now + 10)
    assert world.states()["QUARANTINED"] == 2
    world.laws.check()
    world.cache.process_died(world.worker.process_id, world.now + 11)
    world.laws.check()


def test_an_empty_cache_keeps_every_law() -> None:
    """Before anything happened the laws hold."""
    Invariants(CoreWorld().cache).check()


def test_a_slot_owned_twice_breaks_a_law() -> None:
    """A reservation that has a cached page's slot is found."""
    world = two_arenas()
    world.worker.lease.reservations[1].grow(node_at(world.namespace.index, "ab").slots[:1])
    assert broken(world) == "every slot is in exactly one state"


def test_a_lost_slot_breaks_a_law() -> None:
    """A slot that nothing owns is found, and how many there should be is said."""
    world = two_arenas()
    world.arena.extents[1].available.pop()
    assert broken(world) == "every slot is in some state: (15, 16)"


@pytest.mark.parametrize("state", [SlotState.RESERVED, SlotState.FREE, SlotState.QUARANTINED])
def test_a_slot_in_a_wrong_state_breaks_a_law(state: SlotState) -> None:
    """A cached page whose slot says anything else is found."""
    world = two_arenas()
    slot = node_at(world.namespace.index, "ab").slots[0]
    world.arena.extents[1].states[slot & 0xFF] = state
    assert broken(world).startswith("a slot's state is what owns it")


def test_a_wrong_count_breaks_a_law() -> None:
    """A count by state that is not what the slots say is found."""
    world = two_arenas()
    world.arena.counts[SlotState.CACHED] += 1
    world.arena.counts[SlotState.FREE] -= 1
    assert broken(world).startswith("the states sum to the slots of the arena")


def test_an_old_generation_breaks_a_law() -> None:
    """A generation that went back since the last check is found; one that grew is none."""
    world = two_arenas()
    generations = world.arena.extents[1].generations
    generations[9] += 5
    world.laws.check()
    generations[9] -= 1
    assert broken(world) == "a generation only grows"


def test_a_leaf_out_of_the_order_breaks_a_law() -> None:
    """An evictable leaf that the policy does not know is found, a held one is none."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.worker.match("ab", 1)
    node = node_at(world.namespace.index, "ab")
    node.queued = False
    world.laws.check()
    pin = world.worker.lease.pins.pop(1)
    node.anchors.discard(pin.anchors[0])
    assert broken(world).startswith("no page is beyond eviction")


def test_a_wrong_total_breaks_a_law() -> None:
    """A total that is not the sum over namespaces is found."""
    world = two_arenas()
    world.cache.counters.miss_count += 1
    assert broken(world) == "sums over namespaces equal the totals"


def test_a_count_without_a_lease_breaks_a_law() -> None:
    """A total that is the sum over namespaces and not over leases is found."""
    world = two_arenas()
    world.cache.counters.miss_count += 1
    world.namespace.counters.miss_count += 1
    assert broken(world) == "sums over leases equal the totals"


def test_more_memory_than_the_quota_breaks_a_law() -> None:
    """A tenant's arenas of the first tier are within its bytes."""
    layout = make_layout()
    world = CoreWorld(slots=8, quotas=Quotas(tier1_bytes=8 * layout.page_bytes))
    world.laws.check()
    world.cache.add_extent(1, 3, 1)
    assert broken(world).startswith("a tenant's arenas are within its bytes")


def test_a_process_of_no_lease_breaks_a_law() -> None:
    """A process whose lease is not in the table is found."""
    world = CoreWorld()
    lease = world.worker.lease
    del world.cache.table.leases[lease.tenant, lease.lease_id]
    assert broken(world) == "a process's lease exists"


def test_a_process_unknown_to_its_lease_breaks_a_law() -> None:
    """A process that its lease does not list is found."""
    world = CoreWorld()
    world.cache.table.processes[50] = Process(50, 1, 1, world.worker.lease)
    assert broken(world) == "a lease knows its processes"


def test_a_reservation_s_wrong_end_breaks_a_law() -> None:
    """A reservation counts the whole pages through its last insert."""
    world = two_arenas()
    world.worker.lease.reservations[1].whole_end += 1
    assert broken(world) == "a reservation knows its last whole page: (4,)"


def test_what_an_ended_lease_left_breaks_a_law() -> None:
    """A lease that went without giving its reserved slots back is found."""
    world = CoreWorld()
    other = world.join("other")
    other.reserve(1, 2)
    del world.cache.table.processes[other.process_id]
    del world.cache.table.leases[other.lease.tenant, other.caller.lease_id]
    assert broken(world) == "every slot is in some state: (6, 8)"


def test_laws_hold_for_quarantine() -> None:
    """A reserved slot under an expired lease has to be in quarantine."""
    world = CoreWorld()
    world.worker.reserve(1, 1)
    world.cache.expire(world.now + 10)
    world.laws.check()
    slots = world.worker.lease.reservations[1].reserved
    world.arena.change(array("Q", slots), SlotState.QUARANTINED, SlotState.RESERVED)
    assert broken(world).startswith("a slot's state is what owns it")


def test_a_callers_mistake_breaks_no_law() -> None:
    """After calls that were refused the laws hold."""
    world = two_arenas()
    stranger = Caller(OWNER, b"unknown", b"secret", world.cache.epoch)
    for verb in (world.cache.release, world.cache.abort):
        with pytest.raises(Exception, match="no such lease"):
            verb(stranger, [1], world.now)
    world.laws.check()
