"""An extent of a device's memory, on a device that is memory of this process."""

import os
from queue import SimpleQueue
from threading import get_ident

import pytest
import torch

from device.card import Card, ClientCuda
from kvstore.v1 import types_pb2
from kvstore_client.errors import DeviceUnavailable, NotHostMemory, StoreUnavailable
from kvstore_client.memory.cuda.cuda_extent import CudaExtent
from kvstore_client.memory.cuda.mapped_memory import CudaMemory, cuda_memory
from kvstore_client.memory.mapped_extent import UntrustedExtent
from kvstore_client.values.page_layout import OpaqueContent, PagedContent, PageLayout

EPOCH = 5
SLOT = 64
OFFSET = 128
SIZE = 1024
LAYOUT = PageLayout(1, SLOT, OpaqueContent(b"x"))


class Rig:
    """A device with one allocation, the process's second device, and the mappings that ended."""

    def __init__(self) -> None:
        self.card = Card()
        address = self.card.malloc(SIZE)
        assert address is not None
        self.address = address
        self.memory = CudaMemory(lambda: ClientCuda(Card(uuid=bytes(16)), self.card))
        self.gone: SimpleQueue[tuple[int, int]] = SimpleQueue()

    def described(self, slot_count: int = 4) -> types_pb2.Extent:
        """Returns the announcement of the allocation."""
        handle = types_pb2.CudaIpcHandle(
            ipc_handle=self.card.handle(self.address),
            device_uuid=self.card.uuid,
            size_bytes=SIZE,
        )
        return types_pb2.Extent(
            extent_id=7,
            arena_id=3,
            slot_count=slot_count,
            slot_bytes=SLOT,
            offset=OFFSET,
            cuda_ipc=handle,
        )

    def map(self, epoch: int = EPOCH) -> CudaExtent:
        """Maps the allocation."""
        return CudaExtent(self.described(), epoch, self.unmapped, self.memory)

    def unmapped(self, extent_id: int) -> None:
        """Notes the end of a mapping and the thread that reported it."""
        self.gone.put((extent_id, get_ident()))

    @property
    def mapped_count(self) -> int:
        """Returns the number of the allocation's mappings, after all queued work is done."""
        self.memory._thread.run(lambda: None)
        return self.card.mapped[self.address]


@pytest.fixture
def rig() -> Rig:
    """Provides a device and this process's memory of it."""
    return Rig()


def test_slots_are_tensors_of_the_exporter_s_memory(rig: Rig) -> None:
    """Slots begin at the offset, on the device of the UUID, and are written in place."""
    extent = rig.map()
    assert (extent.extent_id, extent.arena_id, extent.slot_count, extent.device) == (7, 3, 4, 1)
    pages = extent.tensor(LAYOUT)
    assert tuple(pages.shape) == (4, SLOT)
    pages[1] = torch.arange(SLOT, dtype=torch.uint8)
    start = OFFSET + SLOT
    assert bytes(rig.card.memory[rig.address])[start : start + SLOT] == bytes(range(SLOT))


def test_a_tensor_has_the_shape_of_the_layout(rig: Rig) -> None:
    """A paged extent is a tensor of the layout's dtype and shape, as on the host."""
    layout = PageLayout.paged(2, PagedContent(2, 1, 2, "float32"))
    tensor = rig.map().tensor(layout)
    assert (tuple(tensor.shape), tensor.dtype) == ((4, 2, 2, 2, 1, 2), torch.float32)


def test_a_device_has_no_bytes(rig: Rig) -> None:
    """Asking a device's extent for bytes raises NotHostMemory, which names the tensors."""
    extent = rig.map()
    with pytest.raises(NotHostMemory, match=r"extent 7 is in the memory of cuda:1.*page_tensor"):
        extent.view()
    with pytest.raises(NotHostMemory):
        extent.slot(0)
    with pytest.raises(IndexError):
        extent.slot(4)


def test_the_last_view_unmaps_and_then_tells(rig: Rig) -> None:
    """The memory is unmapped and reported once, after the last view of a view is gone."""
    extent = rig.map()
    row = extent.tensor(LAYOUT)[2][:8]
    del extent
    assert (rig.mapped_count, rig.gone.empty()) == (1, True)
    assert row.sum() > 0
    del row
    extent_id, thread = rig.gone.get(timeout=30)
    assert (extent_id, rig.mapped_count, rig.gone.empty()) == (7, 0, True)
    assert {thread} == rig.card.threads != {get_ident()}
    assert rig.card.calls == ["open", "tensor", "synchronize", "close"]


def test_one_process_opens_a_handle_once(rig: Rig) -> None:
    """Two clients of a process share one mapping, which ends with the last of their views."""
    first, second = rig.map(), rig.map()
    assert (rig.card.calls.count("open"), rig.mapped_count) == (1, 1)
    del first
    rig.gone.get(timeout=30)
    assert rig.mapped_count == 1
    assert second.tensor(LAYOUT).shape[0] == 4
    del second
    rig.gone.get(timeout=30)
    assert rig.mapped_count == 0
    assert rig.map().device == 1


def test_a_handle_of_another_store_is_never_taken_for_the_old_one(rig: Rig) -> None:
    """An equal handle of a new store is refused while a view of the old store exists."""
    old = rig.map()
    with pytest.raises(StoreUnavailable, match="drop its views"):
        rig.map(EPOCH + 1)
    assert rig.mapped_count == 1
    del old
    assert rig.mapped_count == 0
    assert rig.map(EPOCH + 1).device == 1


def test_memory_that_cannot_be_viewed_is_unmapped(rig: Rig) -> None:
    """A mapping without a tensor is unmapped, and its end is not reported."""
    rig.card.fail = "tensor"
    with pytest.raises(DeviceUnavailable, match="tensor"):
        rig.map()
    assert (rig.mapped_count, rig.gone.empty()) == (0, True)


def test_memory_that_cannot_be_unmapped_is_not_told_as_unmapped(rig: Rig) -> None:
    """The store is not told that memory is unmapped if CUDA refuses to unmap it."""
    extent = rig.map()
    rig.card.fail = "close"
    del extent
    assert (rig.mapped_count, rig.gone.empty()) == (1, True)


def test_a_device_that_is_not_visible_is_refused(rig: Rig) -> None:
    """An extent on an invisible device is refused, and nothing is mapped."""
    rig.memory = CudaMemory(lambda: ClientCuda(Card(uuid=bytes(16))))
    with pytest.raises(DeviceUnavailable):
        rig.map()
    assert rig.mapped_count == 0


def test_work_is_waited_for_on_the_device_of_the_memory(rig: Rig) -> None:
    """The caller's thread waits for the device of the memory."""
    extent = rig.map()
    extent.wait_for_device()
    assert rig.card.calls[-1] == "synchronize"


@pytest.mark.parametrize(
    "wrong",
    [
        types_pb2.CudaIpcHandle(ipc_handle=bytes(63), device_uuid=bytes(16), size_bytes=SIZE),
        types_pb2.CudaIpcHandle(ipc_handle=bytes(64), device_uuid=bytes(15), size_bytes=SIZE),
        types_pb2.CudaIpcHandle(ipc_handle=bytes(64), device_uuid=bytes(16), size_bytes=383),
    ],
    ids=["handle", "uuid", "size"],
)
def test_a_description_that_cannot_be_is_refused(rig: Rig, wrong: types_pb2.CudaIpcHandle) -> None:
    """A handle, UUID or size of the wrong length is refused before any call of CUDA."""
    described = rig.described()
    described.cuda_ipc.CopyFrom(wrong)
    with pytest.raises(UntrustedExtent, match="extent 7"):
        CudaExtent(described, EPOCH, rig.unmapped, rig.memory)
    assert rig.card.calls == []


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_does_not_touch_cuda(rig: Rig) -> None:
    """A forked child ends the inherited views without a call of CUDA or a report."""
    extent: CudaExtent | None = rig.map()
    mine = cuda_memory()
    calls = len(rig.card.calls)
    pid = os.fork()
    if pid == 0:
        extent = None
        os._exit(not (rig.memory._thread._queue.empty() and cuda_memory() is not mine))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert (len(rig.card.calls), cuda_memory()) == (calls, mine)
    assert extent is not None
    assert rig.mapped_count == 1
