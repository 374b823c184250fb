"""The owners of named pins, their quota, and their list."""

import pytest

from core.core_builders import ADMIN, FILLER, NAMESPACE_ID, OWNER, CoreWorld, paged
from core.pinned_world import names, pin, world_of
from kvstore.core.leases.named_pins import NamedPin
from kvstore.core.stats import NamedPinStats, named_pin_stats
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.limits import Limits
from kvstore.core.values.requests import Identity, NamedPinRequest
from kvstore.errors import KVStoreError, NamespaceNotFound, QuotaExceeded

STRANGER = Identity("tenant-b")


def test_a_tenant_has_so_many_pins() -> None:
    """The quota is over a tenant's namespaces together, whoever pins; a repeat needs no room."""
    world = world_of("abcd", max_named_pins=2)
    other = NamespaceIdentity(b"other")
    world.cache.open_namespace(
        world.worker.caller, other, world.namespace.layout, b"other", world.now
    )
    pin(world, "p", "ab")
    pin(world, "q", "ab")
    assert pin(world, "q", "ab") == 2
    for identity in (OWNER, ADMIN):
        with pytest.raises(QuotaExceeded) as error:
            world.cache.pin_prefix(identity, NAMESPACE_ID, NamedPinRequest("r", paged("a")), 1.0)
        assert error.value.metadata == {"quota": "named_pins", "maximum": "2"}
    world.cache.unpin_prefix(OWNER, NAMESPACE_ID, "p")
    assert pin(world, "r", "a") == 1


def test_names_of_namespaces_have_nothing_to_do_with_each_other() -> None:
    """The same name may stand in two namespaces; a list of all goes by the making."""
    world = world_of("abcd")
    other = NamespaceIdentity(b"other")
    world.cache.open_namespace(
        world.worker.caller, other, world.namespace.layout, b"other", world.now
    )
    pin(world, "p", "ab")
    assert world.cache.pin_prefix(OWNER, b"other", NamedPinRequest("p", paged("zz")), 1.0) == 0
    pin(world, "a", "abc")
    for identity in (OWNER, ADMIN):
        pins = world.cache.visible_named_pins(identity, None)
        assert [(each.hold_id, each.name) for each in pins] == [(1, "p"), (2, "a")]
    assert world.cache.visible_named_pins(OWNER, b"other") == []
    assert world.cache.visible_named_pins(STRANGER, None) == []


def test_no_one_pins_in_anothers_namespace() -> None:
    """For a stranger a namespace is as one that never was; an admin pins, lists and unpins."""
    world = world_of("abcd")
    cache, request = world.cache, NamedPinRequest("p", paged("ab"))
    assert cache.pin_prefix(ADMIN, NAMESPACE_ID, request, 1.0) == 4
    for call in (
        lambda: cache.pin_prefix(STRANGER, NAMESPACE_ID, request, 1.0),
        lambda: cache.unpin_prefix(STRANGER, NAMESPACE_ID, "p"),
        lambda: cache.visible_named_pins(STRANGER, NAMESPACE_ID),
    ):
        with pytest.raises(NamespaceNotFound):
            call()
    assert names(world) == ["p"]
    cache.unpin_prefix(ADMIN, NAMESPACE_ID, "p")
    assert names(world) == []


def test_bad_tokens_pin_nothing() -> None:
    """Tokens that are none, or too many, are refused."""
    world = CoreWorld(limits=Limits(max_tokens=6))
    for tokens in (b"abc", FILLER * 7):
        with pytest.raises(KVStoreError):
            world.cache.pin_prefix(OWNER, NAMESPACE_ID, NamedPinRequest("p", tokens), 1.0)


def test_a_snapshot_of_a_pin_counts_time_from_now() -> None:
    """Age and time left are those of the moment; what is overdue and not ended has none left."""
    world = world_of("abcd")
    pin(world, "p", "abc", ttl=5)
    held: NamedPin = world.cache.state.named_pins.of(world.namespace)["p"]
    assert named_pin_stats(held, 102.0) == NamedPinStats(1, NAMESPACE_ID, "p", 6, 2.0, 3.0)
    assert named_pin_stats(held, 109.0).remaining == 0.0
    pin(world, "q", "a")
    assert (
        named_pin_stats(world.cache.state.named_pins.of(world.namespace)["q"], 102.0).remaining
        is None
    )
