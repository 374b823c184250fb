"""Touches that wait for a page store: tenants take turns, and the busiest one loses some."""

from core.core_builders import make_namespace, plant
from kvstore.core.pool.disk_state import Touch, TouchQueue


def touch(number: int) -> Touch:
    """Returns a touch that is told by a number."""
    return Touch(plant(make_namespace(), "a").node, number, number + 1)


def drained(queue: TouchQueue) -> list[int]:
    """Removes all touches; returns their numbers."""
    return [queue.popleft().start for _ in range(len(queue))]


def test_tenants_take_turns() -> None:
    """Each one's touches come in their order."""
    queue = TouchQueue()
    for tenant, number in (("a", 1), ("a", 2), ("a", 3), ("b", 11), ("b", 12), ("c", 21)):
        queue.append(touch(number), tenant)
    assert queue.is_shared
    assert drained(queue) == [1, 11, 21, 2, 12, 3]
    assert not queue
    assert not queue.is_shared


def test_a_busy_tenant_pushes_out_nobody_else() -> None:
    """Its own oldest touches go."""
    queue = TouchQueue(4)
    queue.append(touch(1), "quiet")
    for number in range(10, 20):
        queue.append(touch(number), "busy")
    assert len(queue) == 4
    assert drained(queue) == [1, 17, 18, 19]


def test_the_rest_of_a_touch_waits_for_the_next_turn() -> None:
    """It comes before the tenant's later touches."""
    queue = TouchQueue()
    for tenant, number in (("a", 1), ("a", 2), ("b", 11)):
        queue.append(touch(number), tenant)
    first = queue.popleft()
    queue.put_back(first._replace(start=7), "a")
    assert drained(queue) == [11, 7, 2]
    queue.put_back(first, "a")
    queue.clear()
    assert len(queue) == 0


def test_a_queue_of_none_keeps_none() -> None:
    """Nothing is written to its page store."""
    queue = TouchQueue(0)
    queue.append(touch(1), "a")
    assert not queue
