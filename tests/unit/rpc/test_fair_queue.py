"""The order in which queues get threads."""

from kvstore.rpc.fair_queue import FairQueue


def test_work_begins_at_once_if_nothing_waits() -> None:
    """While its queue has fewer threads than are idle; then it waits."""
    fair: FairQueue[int] = FairQueue(4)
    assert fair.enter("a", 1) == ("a", 1)
    assert fair.enter("a", 2) == ("a", 2)
    assert fair.enter("a", 3) is None
    assert fair.has_waiting
    assert fair.enter("b", 4) == ("b", 4)
    # One is idle, which a third queue may have.
    assert fair.enter("b", 5) is None
    assert fair.enter("c", 6) == ("c", 6)


def test_the_queue_that_waits_longest_is_next() -> None:
    """Lanes take fair: one that had its turn stands behind the others."""
    fair: FairQueue[int] = FairQueue(2)
    assert fair.enter("a", 1) == ("a", 1)
    assert [fair.enter("a", 2), fair.enter("a", 3)] == [None, None]
    assert fair.enter("b", 4) == ("b", 4)
    assert fair.enter("b", 5) is None
    assert fair.end("a") == ("a", 2)
    assert fair.end("b") == ("b", 5)
    assert fair.end("b") is None
    assert fair.end("a") == ("a", 3)
    assert fair.end("a") is None
    assert not fair.has_waiting
    assert fair.next() is None


def test_waiting_work_comes_before_what_enters() -> None:
    """Also if it was put there by a thread that took none."""
    fair: FairQueue[int] = FairQueue(4)
    fair.put("a", 1)
    assert fair.enter("b", 2) == ("a", 1)
    assert fair.next() == ("b", 2)
    assert fair.end("a") is None
