"""Extents as messages, with or without what reaches their memory."""

from collections.abc import Sequence

from kvstore.service.store import ExtentDescription
from kvstore.v1 import types_pb2


def extent_message(extent: ExtentDescription) -> types_pb2.Extent:
    """Return an extent without a handle."""
    return types_pb2.Extent(
        extent_id=extent.shape.extent_id,
        arena_id=extent.shape.arena_id,
        tier=types_pb2.Tier.Name(extent.shape.tier),
        slot_count=extent.shape.slot_count,
        slot_bytes=extent.shape.slot_bytes,
        offset=extent.offset,
    )


def exported_messages(extents: Sequence[ExtentDescription]) -> list[types_pb2.Extent]:
    """Return extents with handles, for a frame that carries their descriptors in this order."""
    messages = []
    for index, extent in enumerate(extents):
        message = extent_message(extent)
        message.host.descriptor_index = index
        message.host.size_bytes = extent.export.size_bytes
        messages.append(message)
    return messages
