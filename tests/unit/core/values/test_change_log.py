"""The changes of blocks that wait for who follows them."""

from core.core_builders import make_namespace
from kvstore.core.values.change_log import (
    CHANGE_BYTES,
    NOTHING_TAKEN,
    ChangeLog,
    CopiesRemoved,
    CopiesStored,
    CopyChange,
)

SPACE = make_namespace()
TENANT = SPACE.tenant


def stored(number: int, tokens: bytes = b"") -> CopyChange:
    """Returns a change."""
    return CopiesStored(SPACE, 1, 0, (range(number, number + 1),), tokens)


def test_changes_are_taken_in_order() -> None:
    """Each once, and the follower is woken for the first that waits."""
    woken: list[int] = []
    log = ChangeLog(room_bytes=1 << 20, wake=lambda: woken.append(1))
    assert log.take(TENANT) is NOTHING_TAKEN
    assert not log.has_changes(TENANT)
    first, second = stored(1), CopiesRemoved(SPACE, 2, (range(1, 2),))
    log.note(first)
    log.note(second)
    assert (len(woken), log.tenants(), log.has_changes(TENANT)) == (1, [TENANT], True)
    assert log.take(TENANT) == ([first, second], 0)
    assert not log.has_changes(TENANT)
    assert log.take(TENANT) == ([], 0)
    log.note(second)
    assert len(woken) == 2


def test_what_does_not_fit_is_lost_with_all_after_it() -> None:
    """Until what waits is taken: after a gap, order means nothing."""
    log = ChangeLog(room_bytes=2 * CHANGE_BYTES + 8, wake=lambda: None)
    kept = stored(1, b"12345678")
    log.note(kept)
    log.note(stored(2, b"1"))
    log.note(stored(3))
    assert log.take(TENANT) == ([kept], 2)
    log.note(stored(4))
    assert log.take(TENANT) == ([stored(4)], 0)


def test_a_change_larger_than_all_room_wakes_who_follows() -> None:
    """Nothing else waits, and the follower has to hear of the loss."""
    woken: list[int] = []
    log = ChangeLog(room_bytes=CHANGE_BYTES, wake=lambda: woken.append(1))
    log.note(stored(1, b"1"))
    log.note(stored(2))
    assert len(woken) == 1
    assert log.has_changes(TENANT)
    assert log.take(TENANT) == ([], 2)


def test_ids_never_come_twice() -> None:
    """They are consecutive, and none is that of no block."""
    log = ChangeLog(room_bytes=0, wake=lambda: None)
    assert [log.take_ids(3), log.take_ids(1), log.take_ids(2)] == [1, 4, 5]
