"""Maps an extent that was announced, by the kind of its handle."""

from collections.abc import Callable, Sequence

from kvstore.v1 import types_pb2
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda.extent import CudaExtent
from kvstore_client.memory.extents import MappedExtent, UntrustedExtent
from kvstore_client.memory.generations import map_generations
from kvstore_client.memory.host import HostExtent


def map_extent(
    extent: types_pb2.Extent,
    descriptors: Sequence[int],
    *,
    store_epoch: int,
    unmapped: Callable[[int], None],
    wait: Callable[[], None] | None = None,
) -> MappedExtent:
    """Maps an extent of a store, and its generations.

    ``descriptors`` came with the extent and stay the caller's. ``unmapped`` is called with the
    extent's id after it is unmapped, at any point of the program: it MUST NOT wait. Memory of a
    device is unmapped after ``wait``, by default once the whole device is done. Raises
    :class:`UntrustedExtent`, ``OSError`` for host memory that cannot be mapped, and
    ``DeviceUnavailable`` for other memory. Raises ``StoreUnavailable`` if the caller has to drop an
    earlier store's views first.
    """
    generations = map_generations(extent, descriptors)
    mapped = _map(extent, descriptors, store_epoch, unmapped, wait)
    mapped.generations = generations
    return mapped


def _map(
    extent: types_pb2.Extent,
    descriptors: Sequence[int],
    store_epoch: int,
    unmapped: Callable[[int], None],
    wait: Callable[[], None] | None,
) -> MappedExtent:
    kind = extent.WhichOneof("handle")
    if kind == "cuda_ipc":
        return CudaExtent(extent, store_epoch, unmapped, wait=wait)
    if kind != "host":
        raise DeviceUnavailable(f"this client cannot map memory by {kind or 'no handle'}")
    if extent.host.descriptor_index >= len(descriptors):
        msg = f"extent {extent.extent_id} came without its descriptor"
        raise UntrustedExtent(msg)
    return HostExtent(extent, descriptors[extent.host.descriptor_index], unmapped)
