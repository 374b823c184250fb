"""Extents as messages."""

from dataclasses import replace

from kvstore.rpc.wire.report import exported_extents, extent_message
from kvstore.service.store import CudaIpcExport, ExtentDescription, HostExport
from kvstore.storage.extent import ExtentShape
from kvstore.v1 import types_pb2

HANDLE, UUID = bytes(range(64)), bytes(range(16))
OFFSET = 25 * (2 << 20)


def described(extent_id: int, export: HostExport | CudaIpcExport) -> ExtentDescription:
    """Returns an extent that begins 64 bytes into its memory."""
    shape = ExtentShape(
        extent_id, arena_id=2, tier=1, slot_count=3, slot_bytes=100, arena_offset=OFFSET
    )
    return ExtentDescription(shape, 64, export)


def on_host(extent_id: int) -> ExtentDescription:
    """Returns an extent of host memory."""
    return described(extent_id, HostExport(descriptor=90 + extent_id, size_bytes=364))


def on_device(extent_id: int) -> ExtentDescription:
    """Returns an extent of a device's memory."""
    return described(extent_id, CudaIpcExport(HANDLE, UUID, 2 << 20))


def told(extent_id: int) -> types_pb2.Extent:
    """Returns the fields that an extent's message has for every kind of memory."""
    return types_pb2.Extent(
        extent_id=extent_id,
        arena_id=2,
        tier="TIER_1",
        slot_count=3,
        slot_bytes=100,
        offset=64,
        arena_offset=OFFSET,
    )


def test_an_extent_is_told_without_what_reaches_it() -> None:
    """GetCapabilities describes an extent's shape and place, without a handle to its memory."""
    wanted = told(7)
    wanted.host.size_bytes = 364
    assert extent_message(on_host(7)) == wanted
    wanted = told(8)
    wanted.cuda_ipc.device_uuid, wanted.cuda_ipc.size_bytes = UUID, 2 << 20
    assert extent_message(on_device(8)) == wanted


def test_exported_extents_count_their_descriptors_in_order() -> None:
    """Each host extent of a frame names its descriptor's index there, not the server's number."""
    messages, descriptors = exported_extents([on_host(7), on_device(5), on_host(4)])
    assert [each.extent_id for each in messages] == [7, 5, 4]
    assert descriptors == (97, 94)
    assert [messages[0].host.descriptor_index, messages[2].host.descriptor_index] == [0, 1]


def test_a_generation_table_has_a_descriptor_of_its_own() -> None:
    """A generation table has a descriptor of its own, whatever memory its extent is in."""
    tables = [HostExport(descriptor=50 + number, size_bytes=24) for number in range(2)]
    extents = [
        replace(on_host(7), generation_table=tables[0]),
        replace(on_device(5), generation_table=tables[1]),
    ]
    messages, descriptors = exported_extents(extents)
    assert descriptors == (97, 50, 51)
    assert [each.generation_table.descriptor_index for each in messages] == [1, 2]
    assert extent_message(extents[1]).generation_table == types_pb2.GenerationTable(size_bytes=24)


def test_a_device_s_extent_is_exported_by_its_handle() -> None:
    """A device's extent travels as handle, device UUID and size, without a descriptor."""
    ((message,), descriptors) = exported_extents([on_device(5)])
    wanted = told(5)
    wanted.cuda_ipc.CopyFrom(
        types_pb2.CudaIpcHandle(ipc_handle=HANDLE, device_uuid=UUID, size_bytes=2 << 20)
    )
    assert (message, descriptors) == (wanted, ())


def test_the_first_extent_s_offset_is_stated() -> None:
    """An extent at the start of its arena says so. A client tells this from an older server."""
    first = on_host(7)
    message = extent_message(replace(first, shape=first.shape._replace(arena_offset=0)))
    assert message.HasField("arena_offset")
