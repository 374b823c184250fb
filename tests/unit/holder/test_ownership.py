"""The decision who owns a holder's descriptors."""

import pytest

from kvstore.holder.holder_process import Former, Ownership, Process

FIRST = Process(pid=10, inode=100)
SECOND = Process(pid=20, inode=200)
# Of another pid namespace, on a kernel whose pidfds share one inode.
UNKNOWN = Process(pid=0, inode=0)


@pytest.fixture
def owned() -> Ownership:
    """Provides an ownership of the first process."""
    ownership = Ownership()
    assert ownership.claim(FIRST, 1)
    return ownership


def test_the_first_who_claims_owns(owned: Ownership) -> None:
    """Nobody owned before, and its connection has the rights."""
    assert owned.owner == FIRST
    assert owned.former == Former(0, None)
    assert owned.owns(owned.number)
    assert not owned.owns(0)


def test_nobody_owns_at_first() -> None:
    """A connection without a grant has no rights before the first owner either."""
    assert not Ownership().owns(0)


def test_another_is_refused_while_the_owner_lives(owned: Ownership) -> None:
    """A refusal changes nothing."""
    number = owned.number
    assert not owned.claim(SECOND, 2)
    assert (owned.owner, owned.number, owned.owns(number)) == (FIRST, number, True)


def test_another_owns_once_the_owner_is_dead(owned: Ownership) -> None:
    """The dead owner's connections lose their rights, and its instance is known."""
    number = owned.number
    owned.leave(None)
    assert owned.claim(SECOND, 2)
    assert owned.former == Former(1, None)
    assert not owned.owns(number)
    assert owned.owns(owned.number)


def test_another_owns_once_the_owner_yielded(owned: Ownership) -> None:
    """The number goes to the next owner, and the former one has no rights at once."""
    number = owned.number
    owned.leave(77)
    assert not owned.owns(number)
    assert owned.claim(SECOND, 2)
    assert owned.former == Former(1, 77)
    assert not owned.owns(number)


def test_an_owner_that_yielded_may_claim_again(owned: Ownership) -> None:
    """If no other process came, it owns again, and its earlier connections do not."""
    number = owned.number
    owned.leave(77)
    assert owned.claim(FIRST, 1)
    assert not owned.owns(number)


def test_the_owner_claims_from_another_connection(owned: Ownership) -> None:
    """It is no other owner, so the former one stays, and all its connections have rights."""
    number = owned.number
    assert owned.claim(FIRST, 1)
    assert (owned.number, owned.former) == (number, Former(0, None))


def test_a_process_that_cannot_be_told_apart_is_another() -> None:
    """Processes of other pid namespaces may be two, so the second is refused."""
    ownership = Ownership()
    assert ownership.claim(UNKNOWN, 1)
    assert not ownership.claim(UNKNOWN, 2)
    ownership.leave(None)
    assert ownership.claim(UNKNOWN, 2)


def test_a_reused_pid_is_another_process(owned: Ownership) -> None:
    """The inode of its pidfd differs."""
    assert not owned.claim(FIRST._replace(inode=101), 2)


def test_a_death_is_told_from_a_yield(owned: Ownership) -> None:
    """The owner after a dead one learns no number, whatever an earlier owner said."""
    owned.leave(5)
    owned.claim(SECOND, 2)
    owned.leave(None)
    owned.claim(FIRST, 3)
    assert owned.former == Former(2, None)
