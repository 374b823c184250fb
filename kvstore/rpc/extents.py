"""Extents as messages, with or without what reaches their memory."""

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.service.store import CudaIpcExport, ExtentDescription, HostExport
from kvstore.v1 import types_pb2


class ExportedExtents(NamedTuple):
    """Extents with handles, and the descriptors of the frame that carries them, in order."""

    messages: list[types_pb2.Extent]
    descriptors: tuple[int, ...]


def extent_message(extent: ExtentDescription) -> types_pb2.Extent:
    """Return an extent with where its memory is, and nothing by which it could be had."""
    message = types_pb2.Extent(
        extent_id=extent.shape.extent_id,
        arena_id=extent.shape.arena_id,
        tier=types_pb2.Tier.Name(extent.shape.tier),
        slot_count=extent.shape.slot_count,
        slot_bytes=extent.shape.slot_bytes,
        offset=extent.offset,
    )
    match extent.export:
        case HostExport(size_bytes=size_bytes):
            message.host.size_bytes = size_bytes
        case CudaIpcExport(device_uuid=device_uuid, size_bytes=size_bytes):
            message.cuda_ipc.device_uuid = device_uuid
            message.cuda_ipc.size_bytes = size_bytes
    if extent.generation_table is not None:
        message.generation_table.size_bytes = extent.generation_table.size_bytes
    return message


def exported_extents(extents: Sequence[ExtentDescription]) -> ExportedExtents:
    """Return extents for a frame, each with its handle or the indexes of its descriptors."""
    messages: list[types_pb2.Extent] = []
    descriptors: list[int] = []
    for extent in extents:
        message = extent_message(extent)
        match extent.export:
            case HostExport(descriptor=descriptor):
                message.host.descriptor_index = len(descriptors)
                descriptors.append(descriptor)
            case CudaIpcExport(ipc_handle=ipc_handle):
                message.cuda_ipc.ipc_handle = ipc_handle
        if extent.generation_table is not None:
            message.generation_table.descriptor_index = len(descriptors)
            descriptors.append(extent.generation_table.descriptor)
        messages.append(message)
    return ExportedExtents(messages, tuple(descriptors))
