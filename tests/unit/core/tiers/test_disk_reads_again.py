"""The pages that a repeated match may read from the disk."""

import pytest

from core.core_builders import NAMESPACE_ID
from core.disk_world import DiskWorld
from kvstore.core.values.requests import MatchOptions
from kvstore.errors import Tombstoned


def test_nothing_is_loaded_for_a_match_that_is_answered_again() -> None:
    """Its pin is held, or was released: only another match takes what the disk has."""
    world = DiskWorld()
    worker = world.worker
    sequence = worker.sequence("abcde")

    def page_count(pin_id: int) -> int:
        options = MatchOptions(pin_id)
        return world.cache.locate(worker.caller, NAMESPACE_ID, sequence, options).page_count

    worker.publish("ab")
    assert page_count(2) == 3
    worker.match("abcde", 2)
    assert page_count(2) == 0
    assert page_count(3) == 3
    worker.release(2)
    with pytest.raises(Tombstoned):
        page_count(2)
