"""A queue of leaves' entries: in the order of ranks, however they come."""

from random import Random

import pytest

from core.core_builders import make_namespace, plant
from kvstore.core.eviction.leaf_order import Entry, EntryQueue
from kvstore.core.eviction.protocol import Leaf


@pytest.fixture
def leaf() -> Leaf:
    """Provides a leaf, which entries are of."""
    return plant(make_namespace(), "a", 0).node


def drained(queue: EntryQueue) -> list[tuple[float, int]]:
    """Takes everything out and returns ranks and numbers, in that order."""
    taken = []
    while (entry := queue.first()) is not None:
        taken.append(entry[:2])
        queue.pop()
    return taken


def test_an_empty_queue_has_no_first() -> None:
    """Nothing is first where nothing is."""
    assert EntryQueue().first() is None
    assert not EntryQueue()


@pytest.mark.parametrize("seed", range(20))
def test_entries_go_by_rank_whatever_order_they_came_in(leaf: Leaf, seed: int) -> None:
    """Each pop among random adds and pops takes the least entry, and the first of equals."""
    chosen, queue, known = Random(seed), EntryQueue(), []
    for number in range(500):
        # Later ranks are mostly higher, as uses are.
        entry = Entry(number // 3 + chosen.choice((0, 0, 0, 0, -5, -50, 7)), number, 0, leaf)
        queue.add(entry)
        known.append(entry[:2])
        if chosen.random() < 0.4:
            assert queue.first() == (*min(known), 0, leaf)
            queue.pop()
            known.remove(min(known))
        assert len(queue) == len(known)
        assert sorted(each[:2] for each in queue) == sorted(known)
    assert drained(queue) == sorted(known)


def test_what_replaces_them_is_put_in_order(leaf: Leaf) -> None:
    """Entries given at once, in any order, are all that is there, in theirs."""
    queue = EntryQueue()
    for rank in (1, 0):
        queue.add(Entry(rank, 0, 0, leaf))
    queue.replace([Entry(rank, number, 0, leaf) for number, rank in enumerate((3, 1, 2, 1), 1)])
    queue.add(Entry(2, 9, 0, leaf))
    assert drained(queue) == [(1, 2), (1, 4), (2, 3), (2, 9), (3, 1)]
