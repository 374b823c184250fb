"""Extents as messages."""

from kvstore.rpc.extents import exported_messages, extent_message
from kvstore.service.store import ExtentDescription
from kvstore.storage.extent import ExtentShape, HostExport
from kvstore.v1 import types_pb2


def described(extent_id: int) -> ExtentDescription:
    """Return an extent that begins 64 bytes into its memory."""
    shape = ExtentShape(extent_id, arena_id=2, tier=1, slot_count=3, slot_bytes=100)
    return ExtentDescription(shape, 64, HostExport(descriptor=9, size_bytes=364))


def test_an_extent_is_told_without_what_reaches_it() -> None:
    """GetCapabilities answers shapes, and nothing by which memory could be had."""
    assert extent_message(described(7)) == types_pb2.Extent(
        extent_id=7, arena_id=2, tier="TIER_1", slot_count=3, slot_bytes=100, offset=64
    )


def test_exported_extents_count_their_descriptors_in_order() -> None:
    """The n-th extent of a frame names the n-th descriptor, never the server's own number."""
    messages = exported_messages([described(7), described(4)])
    assert [each.extent_id for each in messages] == [7, 4]
    assert [each.host.descriptor_index for each in messages] == [0, 1]
    assert {each.host.size_bytes for each in messages} == {364}
