"""The order in which queues get threads."""

from collections.abc import Hashable

from kvstore.rpc.fair_queue import FairQueue


def begun(fair: FairQueue[int], queue: str, work: int) -> tuple[Hashable, int] | None:
    """Adds work to a queue; returns what is next."""
    fair.put(queue, work)
    return fair.next()


def test_work_begins_at_once_if_nothing_waits() -> None:
    """While its queue has fewer threads than are idle; then it waits."""
    fair: FairQueue[int] = FairQueue(4)
    assert begun(fair, "a", 1) == ("a", 1)
    assert begun(fair, "a", 2) == ("a", 2)
    assert begun(fair, "a", 3) is None
    assert fair.has_waiting
    assert begun(fair, "b", 4) == ("b", 4)
    # One is idle, which a third queue may have.
    assert begun(fair, "b", 5) is None
    assert begun(fair, "c", 6) == ("c", 6)


def test_the_queue_that_waits_longest_is_next() -> None:
    """Lanes take fair: one that had its turn stands behind the others."""
    fair: FairQueue[int] = FairQueue(2)
    assert begun(fair, "a", 1) == ("a", 1)
    assert [begun(fair, "a", 2), begun(fair, "a", 3)] == [None, None]
    assert begun(fair, "b", 4) == ("b", 4)
    assert begun(fair, "b", 5) is None
    assert fair.end("a") == ("a", 2)
    assert fair.end("b") == ("b", 5)
    assert fair.end("b") is None
    assert fair.end("a") == ("a", 3)
    assert fair.end("a") is None
    assert not fair.has_waiting
    assert fair.next() is None


def test_a_thread_may_leave_the_rest_to_others() -> None:
    """Work that waited for its thread is next for the thread that asks."""
    fair: FairQueue[int] = FairQueue(2)
    assert begun(fair, "a", 1) == ("a", 1)
    assert begun(fair, "a", 2) is None
    fair.leave("a")
    assert fair.has_waiting
    assert fair.next() == ("a", 2)


def served(fair: FairQueue[int], queue: str) -> list[str]:
    """Ends the work of a queue, and then each that is next. Returns the queues in their order."""
    order: list[str] = []
    following = fair.end(queue)
    while following is not None:
        order.append(str(following[0]))
        following = fair.end(following[0])
    return order


def waiting(*queues: str) -> FairQueue[int]:
    """Returns one thread's queues, with work under way of ``a``, and work that waits."""
    fair: FairQueue[int] = FairQueue(1)
    assert begun(fair, "a", 0) == ("a", 0)
    for number, queue in enumerate(queues):
        fair.put(queue, number)
    return fair


def test_work_of_many_turns_waits_for_as_many_of_others() -> None:
    """A queue whose work was worth four turns stands back for three turns of the other."""
    fair = waiting(*"aaabbbbb")
    assert served(fair, "a") == list("abababbb")
    fair = waiting(*"aaabbbbb")
    fair.charge("a", 4)
    assert served(fair, "a") == list("bbbababa")


def test_nobody_stands_back_for_nobody() -> None:
    """A queue alone owes nothing, and one that owes is served while no other waits."""
    fair = waiting("a", "a")
    fair.charge("a", 1000)
    fair.put("b", 9)
    assert served(fair, "a") == list("aba")
    fair = waiting(*"aab")
    fair.charge("a", 1000)
    assert served(fair, "a") == list("baa")
    assert begun(fair, "a", 0) == ("a", 0)
    fair.put("a", 1)
    fair.put("b", 2)
    assert served(fair, "a") == list("ab")


def test_of_queues_that_owe_the_one_with_the_least_is_next() -> None:
    """The others have paid as much as it owed."""
    fair = waiting(*"aaabb")
    fair.charge("a", 3)
    fair.charge("b", 2)
    assert served(fair, "a") == list("bbaaa")
