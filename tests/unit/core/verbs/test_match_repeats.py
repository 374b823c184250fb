"""Repeated matches: the comparison of a call with the one that took the pin."""

import pytest

from core.core_builders import CoreWorld, make_layout
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import MatchOptions
from kvstore.errors import IdReused


def test_a_pin_id_names_one_match() -> None:
    """Another sequence, position, base or namespace under a pin's id is a bug of the caller."""
    world = CoreWorld()
    world.worker.publish("abc")
    world.worker.match("abc", 1)
    identity = NamespaceIdentity(b"another")
    world.cache.open_namespace(world.worker.caller, identity, make_layout(), b"2nd", world.now)
    with pytest.raises(IdReused) as error:
        world.worker.match("abx", 1)
    assert error.value.metadata == {"id": "1"}
    with pytest.raises(IdReused):
        world.worker.match("xbc", 1)
    with pytest.raises(IdReused):
        world.worker.match("abcd", 1)
    with pytest.raises(IdReused):
        world.worker.match("bc", 1, 1, base_pin_id=1)
    sequence = world.worker.sequence("abc")
    with pytest.raises(IdReused):
        world.cache.match(world.worker.caller, b"2nd", sequence, MatchOptions(1), world.now)


@pytest.mark.parametrize("other", ["xbcdef", "abxdef", "abcdex", "abcde", "abcdefg"])
def test_a_pin_on_what_was_removed_is_its_own_match_s_alone(other: str) -> None:
    """The pinned path tells, in the index or out of it, and what was asked beyond it."""
    world = CoreWorld()
    world.worker.publish("abcd")
    first = world.worker.match("abcdef", 1)
    world.evict_prefix("abc")
    assert world.worker.match("abcdef", 1) == first
    with pytest.raises(IdReused):
        world.worker.match(other, 1)


def test_a_pin_with_a_base_is_its_own_match_s_alone() -> None:
    """The matched tokens of those that were sent are compared with the path's end."""
    world = CoreWorld()
    world.worker.publish("abcd")
    world.worker.match("abc", 1)
    first = world.worker.match("cde", 2, 2, base_pin_id=1)
    assert world.worker.match("cde", 2, 2, base_pin_id=1) == first
    for other in ("xde", "cdx", "cd"):
        with pytest.raises(IdReused):
            world.worker.match(other, 2, 2, base_pin_id=1)
