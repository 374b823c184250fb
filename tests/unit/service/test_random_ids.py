"""Ids of arenas and extents tell nobody how many others there are."""

from itertools import islice, pairwise

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
