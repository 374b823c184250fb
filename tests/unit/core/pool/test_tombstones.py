"""Tombstones: ids that were released, remembered for a while."""

import pytest

from kvstore.core.pool.tenant import Tombstones, TombstonesOf
from kvstore.errors import Tombstoned


def test_an_unknown_id_is_let_through() -> None:
    """Without a tombstone nothing is raised."""
    Tombstones(10.0, 1000).require_none("pin", id=1)


def test_a_released_id_is_refused_by_name() -> None:
    """Under a tombstone the error names what the caller gave."""
    tombstones = Tombstones(10.0, 1000)
    tombstones.leave(b"lease", 100.0)
    with pytest.raises(Tombstoned) as error:
        tombstones.require_none(b"lease", lease_id="abc")
    assert error.value.metadata == {"lease_id": "abc"}


def test_a_tombstone_lasts_its_lifetime() -> None:
    """It is there until its time is over, and gone at that moment."""
    tombstones = Tombstones(10.0, 1000)
    tombstones.leave(1, 100.0)
    tombstones.expire(109.9)
    with pytest.raises(Tombstoned):
        tombstones.require_none(1, id=1)
    tombstones.expire(110.0)
    tombstones.require_none(1, id=1)
    assert len(tombstones) == 0


def test_only_the_old_ones_go() -> None:
    """Tombstones past their lifetime go, and the others stay."""
    tombstones = Tombstones(10.0, 1000)
    for key in range(5):
        tombstones.leave(key, 100.0 + key)
    tombstones.expire(112.0)
    for key in (0, 1, 2):
        tombstones.require_none(key, id=key)
    for key in (3, 4):
        with pytest.raises(Tombstoned):
            tombstones.require_none(key, id=key)


def test_a_repeated_release_lasts_longer() -> None:
    """A tombstone left again lives from then on, and holds up none left in between."""
    tombstones = Tombstones(10.0, 1000)
    tombstones.leave("first", 100.0)
    tombstones.leave("second", 101.0)
    tombstones.leave("first", 105.0)
    assert len(tombstones) == 2
    tombstones.expire(112.0)
    tombstones.require_none("second", id=2)
    with pytest.raises(Tombstoned):
        tombstones.require_none("first", id=1)


def test_many_are_left_at_once() -> None:
    """They expire as others do, and the first are dropped beyond the most."""
    table = Tombstones(10.0, 3)
    one = TombstonesOf(table, "one")
    one.leave("first", 1.0)
    one.leave_all(["second", "third", "fourth"], 2.0)
    assert [each in one for each in ("first", "second", "third", "fourth")] == [False] + [True] * 3
    table.expire(11.5)
    assert len(table) == 3
    table.expire(12.5)
    assert len(table) == 0


def test_of_too_many_the_oldest_go() -> None:
    """They are bounded in number; one that is left again is young again."""
    tombstones = Tombstones(10.0, 3)
    for key in (1, 2, 3, 1, 4):
        tombstones.leave(key, 100.0)
    assert len(tombstones) == 3
    tombstones.require_none(2, id=2)
    for key in (1, 3, 4):
        with pytest.raises(Tombstoned):
            tombstones.require_none(key, id=key)


def test_an_id_means_something_in_its_scope() -> None:
    """The same id of another scope has no tombstone; their bound is one."""
    table = Tombstones(10.0, 3)
    mine, other = TombstonesOf(table, "mine"), TombstonesOf(table, "other")
    mine.leave(1, 100.0)
    other.require_none(1, id=1)
    with pytest.raises(Tombstoned):
        mine.require_none(1, id=1)
    for key in range(3):
        other.leave(key, 100.0)
    mine.require_none(1, id=1)
    assert len(table) == 3


def test_none_is_nothing_to_expire() -> None:
    """Without tombstones nothing happens."""
    tombstones = Tombstones(10.0, 1000)
    tombstones.expire(1e9)
    assert len(tombstones) == 0


class CountingKey:
    """A key that counts how often keys are hashed, that is, looked up, left or dropped."""

    hashed = 0

    def __hash__(self) -> int:
        CountingKey.hashed += 1
        return id(self)


def test_expiry_costs_what_it_drops() -> None:
    """With a thousand tombstones alive, expiring two touches few."""
    tombstones = Tombstones(10.0, 1000)
    keys = [CountingKey() for _ in range(1000)]
    for number, key in enumerate(keys):
        tombstones.leave(key, 100.0 if number < 2 else 200.0)
    CountingKey.hashed = 0
    tombstones.expire(110.0)
    assert CountingKey.hashed <= 2 * 5
    assert len(tombstones) == 998


def test_a_scope_knows_its_own_alone() -> None:
    """Ids of one scope mean nothing in another, though they stand in one table."""
    table = Tombstones(10.0, 1000)
    pins, leases = TombstonesOf(table, "pin"), TombstonesOf(table, "lease")
    pins.leave(1, 100.0)
    assert (1 in pins, 1 in leases, len(table)) == (True, False, 1)
