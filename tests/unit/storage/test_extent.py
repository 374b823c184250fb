"""The description of an extent."""

from kvstore.storage.extent import ExtentShape


def test_an_extent_is_as_large_as_its_slots() -> None:
    """The bytes of an extent are those of all its slots, and nothing else."""
    shape = ExtentShape(extent_id=1, arena_id=2, tier=1, slot_count=3, slot_bytes=100)
    assert shape.size_bytes == 300
