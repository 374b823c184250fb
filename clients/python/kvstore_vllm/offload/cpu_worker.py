"""vLLM's worker for builds without a device: copies between blocks and rows on the host."""

import time
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvstore_vllm.offload.region import StoreRegion


class HostCopyWorker(OffloadingWorker):
    """Copies as ``CPUOffloadingWorker`` does on a device, before a submission returns.

    The rank's thread uses it.
    """

    def __init__(
        self, kv_caches: CanonicalKVCaches, blocks_per_chunk: int, region: StoreRegion
    ) -> None:
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        self._blocks = [each.tensor.view(torch.uint8) for each in kv_caches.tensors]
        self._rows = [
            region.create_next_worker_view(each.page_size_bytes * blocks_per_chunk)
            .view(torch.uint8)
            .unflatten(1, (blocks_per_chunk, each.page_size_bytes))
            for each in kv_caches.tensors
        ]
        self._refs: Sequence[Sequence[CanonicalKVCacheRef]] = kv_caches.group_data_refs
        self._ended: list[TransferResult] = []

    def submit_store(
        self, job_id: int, src_spec: GPULoadStoreSpec, dst_spec: LoadStoreSpec
    ) -> bool:
        """Copies blocks into rows."""
        return self._copy(job_id, src_spec, dst_spec, to_blocks=False)

    def submit_load(self, job_id: int, src_spec: LoadStoreSpec, dst_spec: GPULoadStoreSpec) -> bool:
        """Copies rows into blocks."""
        return self._copy(job_id, dst_spec, src_spec, to_blocks=True)

    def get_finished(self) -> list[TransferResult]:
        """Returns the copies since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def wait(self, job_ids: set[int]) -> None:
        """Does nothing: all copies have ended."""

    def shutdown(self) -> None:
        """Drops the rows."""
        self._rows = []
        self._region.cleanup()

    def _copy(
        self, job_id: int, blocks: GPULoadStoreSpec, rows: LoadStoreSpec, *, to_blocks: bool
    ) -> bool:
        assert isinstance(rows, BlockIDsLoadStoreSpec)
        begin = time.monotonic()
        byte_count = 0
        for block, row, part, ref in self._pieces(blocks, rows.block_ids):
            size = ref.page_size_bytes
            target = self._blocks[ref.tensor_idx][block, :size].numpy()
            source = self._rows[ref.tensor_idx][row, part, :size].numpy()
            if to_blocks:
                np.copyto(target, source)
            else:
                np.copyto(source, target)
            byte_count += size
        took = time.monotonic() - begin
        self._ended.append(TransferResult(job_id, True, byte_count, took))  # noqa: FBT003  # vLLM's field
        return True

    def _pieces(
        self, blocks: GPULoadStoreSpec, rows: np.ndarray
    ) -> Iterator[tuple[int, int, int, CanonicalKVCacheRef]]:
        """Yields each block with its row, its part of the row, and a layer's bytes in both."""
        block_ids = iter(blocks.block_ids.tolist())
        row_ids = rows.tolist()
        first_row = 0
        for refs, size, index in zip(
            self._refs, blocks.group_sizes, blocks.block_indices, strict=True
        ):
            # A row of several blocks may begin before the first block that is copied.
            skipped = index % self._blocks_per_chunk
            for position in range(skipped, skipped + size):
                block = next(block_ids)
                row = row_ids[first_row + position // self._blocks_per_chunk]
                for ref in refs:
                    yield block, row, position % self._blocks_per_chunk, ref
            if size:
                first_row += -(-(skipped + size) // self._blocks_per_chunk)
