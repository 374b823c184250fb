"""The store's rows under vLLM's own code for copies: the same bytes at the same addresses."""

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from vllm.v1.kv_offload.base import (
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CanonicalKVCacheTensor,
    GPULoadStoreSpec,
)
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.gpu_worker import compute_sub_block_ptrs, pin_mmap_region

from kvstore_client import (
    AddressRange,
    Client,
    ClientConfig,
    ContiguousMemory,
    NamespaceIdentity,
    OpaqueContent,
    PageLayout,
    Reservation,
)
from kvstore_client.testing import running_store
from kvstore_vllm.offload.cpu_worker import HostCopyWorker
from kvstore_vllm.offload.region import StoreRegion

LAYER_BYTES, LAYERS, CHUNK, BLOCKS, ROWS = 512, 2, 2, 16, 4
RANK_BYTES = LAYER_BYTES * LAYERS * CHUNK
ROW_BYTES = 4096
IDENTITY = NamespaceIdentity(b"a model of thirty-two bytes at mo", display_name="tiny")
LAYOUT = PageLayout(4, ROW_BYTES, OpaqueContent(b"rows"))
# The second rank's bytes begin here.
BEGIN = RANK_BYTES


class Memory:
    """Some reserved slots of a store, and the addresses of all its rows."""

    def __init__(self, addresses: AddressRange, reservation: Reservation) -> None:
        self.addresses = addresses
        self.rows = addresses.rows(reservation.pages.runs)
        self.session = reservation.hold.session

    def row(self, number: int) -> np.ndarray:
        """Returns the bytes of one reserved slot."""
        view = self.addresses.view()
        begin = int(self.rows[number]) * ROW_BYTES
        return np.frombuffer(view[begin : begin + ROW_BYTES], dtype=np.uint8)


@pytest.fixture
def memory() -> Iterator[Memory]:
    """Provides reserved slots."""
    with running_store("--tier1-bytes", str(16 * ROW_BYTES)) as store:
        config = ClientConfig(contiguous_memory=ContiguousMemory(), call_timeout=20.0)
        client = Client(store.runtime_dir, config)
        client.start()
        namespace = client.namespace(IDENTITY, LAYOUT)
        assert namespace.wait_open(20.0)
        with namespace.reserve(start_page=0, page_count=ROWS) as reservation:
            addresses = namespace.address_range
            assert addresses is not None
            yield Memory(addresses, reservation)
        client.close()


def test_vllm_registers_nothing_and_reads_no_row_by_a_kernel(memory: Memory) -> None:
    """The client registers extents, so vLLM's own registration of the whole range does nothing."""
    region = StoreRegion(memory.addresses, 1, BEGIN)
    pin_mmap_region(region)
    assert not region.is_pinned
    assert region.pinned_addresses == []
    region.cleanup()


def test_vllm_finds_each_layer_of_a_row(memory: Memory) -> None:
    """The addresses that vLLM's copies on a device use are those of the rank's bytes."""
    region = StoreRegion(memory.addresses, 1, BEGIN)
    size = LAYER_BYTES * CHUNK
    views = [region.create_next_worker_view(size) for _ in range(LAYERS)]
    for layer, view in enumerate(views):
        found = np.empty(ROWS * CHUNK - 1, dtype=np.uint64)
        compute_sub_block_ptrs(memory.rows.astype(np.int32), CHUNK, found, view, skip_count=1)
        wanted = [
            memory.addresses.address(int(row)) + BEGIN + layer * size + part * LAYER_BYTES
            for row in memory.rows
            for part in range(CHUNK)
        ]
        assert found.tolist() == wanted[1:]
    with pytest.raises(ValueError, match="row"):
        region.create_next_worker_view(ROW_BYTES)


def test_copies_on_the_host_are_those_of_a_device(memory: Memory) -> None:
    """Rows of two blocks, of which the first is copied from its middle on, in two groups."""
    blocks = torch.randint(0, 255, (LAYERS, BLOCKS, LAYER_BYTES), dtype=torch.uint8)
    layers = [CanonicalKVCacheTensor(each.view(torch.int8), LAYER_BYTES) for each in blocks]
    both = [CanonicalKVCacheRef(number, LAYER_BYTES) for number in range(LAYERS)]
    # The second group has the second layer alone, and half of its bytes.
    one = [CanonicalKVCacheRef(1, LAYER_BYTES // 2)]
    caches = CanonicalKVCaches(layers, [both, one])
    worker = HostCopyWorker(caches, CHUNK, StoreRegion(memory.addresses, 1, BEGIN))
    before = [memory.row(number).copy() for number in range(ROWS)]
    # Blocks 5 to 7 of a request in group 0, and its blocks 2 and 3 in group 1.
    spec = GPULoadStoreSpec([3, 8, 2, 9, 4], [3, 2], [5, 2])
    rows = CPULoadStoreSpec(memory.rows[:3].tolist())
    assert worker.submit_store(1, spec, rows)
    expected = [each.copy() for each in before]
    for row, part, block in ((0, 1, 3), (1, 0, 8), (1, 1, 2)):
        for layer in range(LAYERS):
            begin = BEGIN + (layer * CHUNK + part) * LAYER_BYTES
            expected[row][begin : begin + LAYER_BYTES] = blocks[layer, block].numpy()
    for part, block in enumerate((9, 4)):
        begin = BEGIN + (CHUNK + part) * LAYER_BYTES
        half = LAYER_BYTES // 2
        expected[2][begin : begin + half] = blocks[1, block, :half].numpy()
    assert all(np.array_equal(memory.row(n), expected[n]) for n in range(ROWS))
    [result] = worker.get_finished()
    assert (result.job_id, result.success) == (1, True)
    assert result.transfer_size == 6 * LAYER_BYTES + LAYER_BYTES
    kept = blocks.clone()
    blocks[:, [3, 8, 2, 9, 4]] = 0
    assert worker.submit_load(2, rows, spec)
    kept[0, [9, 4]] = 0
    kept[1, [9, 4], LAYER_BYTES // 2 :] = 0
    assert torch.equal(blocks, kept)
    worker.shutdown()
