"""The laws of prefills: each is seen to be broken."""

from collections.abc import Callable

import pytest

from core.core_builders import CoreWorld, paged
from kvstore.core.invariants.invariant import InvariantBroken
from kvstore.core.leases.lease import LeaseState
from kvstore.core.pool.prefills import Prefill


def announced() -> tuple[CoreWorld, Prefill]:
    """Returns a world with two prefills, and that of which a page was inserted."""
    world = CoreWorld(slots=16)
    world.worker.acquire("abcd", 1, 2)
    world.worker.acquire("abxy", 3, 4)
    world.worker.insert(2, "a")
    world.laws.check()
    prefill = world.worker.lease.reservations[2].prefill
    assert prefill is not None
    return world, prefill


def test_a_prefill_of_a_lease_that_is_late_breaks_a_law() -> None:
    """Past the TTL nobody may be told of it."""
    world, _ = announced()
    world.worker.lease.state = LeaseState.EXPIRED
    with pytest.raises(InvariantBroken):
        world.laws.check()


def test_a_prefill_without_its_reservation_breaks_a_law() -> None:
    """One that stayed behind is found."""
    world, _ = announced()
    world.worker.lease.reservations[2].prefill = None
    with pytest.raises(
        InvariantBroken, match="a prefill is of an open reservation of a lease that"
    ):
        world.laws.check()


def _hide(world: CoreWorld, prefill: Prefill) -> None:
    world.namespace.prefills.drop(prefill)


def _misplace(world: CoreWorld, prefill: Prefill) -> None:
    by_page = world.namespace.prefills.by_page
    by_page[1, paged("x")] = by_page.pop((prefill.at, paged("b")))


def _leave_empty(world: CoreWorld, _: Prefill) -> None:
    world.namespace.prefills.by_page[7, paged("b")] = []


def _disorder(world: CoreWorld, _: Prefill) -> None:
    world.worker.acquire("axxx", 5, 6)
    world.worker.acquire("axyy", 7, 8)
    world.namespace.prefills.by_page[1, paged("x")].reverse()


def _fall_behind(world: CoreWorld, prefill: Prefill) -> None:
    world.namespace.prefills.advance(prefill, 0, 1.0)


def _have_no_slots(_: CoreWorld, prefill: Prefill) -> None:
    prefill.end = 5


def _end(_: CoreWorld, prefill: Prefill) -> None:
    prefill.end = 1


def _say_something_else(_: CoreWorld, prefill: Prefill) -> None:
    prefill.tokens = paged("bbcd") + prefill.tokens[-4:]


def _miscount(world: CoreWorld, _: Prefill) -> None:
    world.worker.lease.owner.announced_bytes += 4


def _overflow(world: CoreWorld, _: Prefill) -> None:
    object.__setattr__(world.cache.limits, "max_announced_bytes", 8)


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        (_hide, "what a reservation announced is found in its namespace"),
        (_misplace, "a prefill stands at the page that it inserts next"),
        (_leave_empty, "a prefill stands at the page that it inserts next"),
        (_disorder, "the prefills of a page stand in the order of their tokens"),
        (_fall_behind, "a prefill is as far as its reservation"),
        (_have_no_slots, "a prefill is of pages that have slots and tokens"),
        (_end, "a prefill is of pages that have slots and tokens"),
        (_say_something_else, "what was inserted is what was announced"),
        (_miscount, "a tenant's announced tokens are counted"),
        (_overflow, "a tenant's announced tokens are bounded"),
    ],
)
def test_a_fault_breaks_a_law(fault: Callable[[CoreWorld, Prefill], None], sentence: str) -> None:
    """Each is told by its sentence."""
    world, prefill = announced()
    fault(world, prefill)
    with pytest.raises(InvariantBroken, match=sentence):
        world.laws.check()
