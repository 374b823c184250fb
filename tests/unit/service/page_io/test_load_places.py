"""Places for calls that wait, and bytes for prefetches."""

from kvstore.service.page_io.loads.load_places import ByteBudget, HeldPlaces, Places


def test_a_tenant_gets_at_most_half_beside_others() -> None:
    """A tenant that is alone gets all."""
    places = Places(4)
    assert [places.take("a", is_alone=False) for _ in range(3)] == [True, True, False]
    assert [places.take("b", is_alone=False) for _ in range(3)] == [True, True, False]
    assert not places.take("c", is_alone=True)
    for tenant in "aabb":
        places.give_back(tenant)
    assert [places.take("a", is_alone=True) for _ in range(5)] == [True] * 4 + [False]


def test_a_call_has_one_place_of_each_kind() -> None:
    """It gives them back as it ends, or before."""
    one, other = Places(1), Places(1)
    with HeldPlaces("a", is_alone=True) as held:
        assert held.take(one)
        assert held.take(one)
        assert held.take(other)
        held.give_back(other)
        assert other.take("b", is_alone=True)
        assert not held.take(other)
        assert not one.take("b", is_alone=True)
    assert one.take("b", is_alone=True)


def test_a_holder_uses_as_many_bytes_as_it_may() -> None:
    """Each holder has its own bound."""
    budget, lease, operator = ByteBudget(100), ("a", b"lease"), ("a", b"")
    assert [budget.take(lease, 3, 40), budget.take(lease, 1, 40)] == [2, 0]
    assert budget.take(operator, 2, 40) == 2
    assert budget.take(("b", b"lease"), 2, 40) == 2
    budget.give_back(lease, 40)
    assert budget.take(lease, 5, 30) == 2
