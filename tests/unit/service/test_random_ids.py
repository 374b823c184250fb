"""Ids of arenas and extents tell nobody how many others there are."""

import secrets
from itertools import islice, pairwise
from threading import Event, Thread

import pytest

from kvstore.service import random_ids as random_ids_module
from kvstore.service.random_ids import LARGEST_ID, random_ids


def test_ids_are_in_range_and_come_once() -> None:
    """Ids fit a uint32, are not zero and not the same twice."""
    ids = list(islice(random_ids(), 1000))
    assert len(set(ids)) == 1000
    assert 1 <= min(ids) <= max(ids) <= LARGEST_ID


def test_ids_do_not_count() -> None:
    """The next id does not follow from one's own."""
    ids = list(islice(random_ids(), 100))
    assert len({after - before for before, after in pairwise(ids)}) > 90


def test_taken_ids_do_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that another process gave out names nothing else."""
    monkeypatch.setattr(random_ids_module, "LARGEST_ID", 4)
    assert sorted(islice(random_ids([3, 1]), 2)) == [2, 4]


def test_threads_take_ids_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiers' threads share the ids of extents. The second one waits for the first."""
    ids, taken, inside, go_on = random_ids(), list[int](), Event(), Event()
    numbers = iter((1, 2))

    def draw(_: int) -> int:
        inside.set()
        assert go_on.wait(30)
        return next(numbers)

    monkeypatch.setattr(secrets, "randbelow", draw)
    threads = [Thread(target=lambda: taken.append(next(ids))) for _ in range(2)]
    for each in threads:
        each.start()
        assert inside.wait(30)
    go_on.set()
    for each in threads:
        each.join()
    assert taken == [2, 3]
