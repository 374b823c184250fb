"""vLLM's worker for builds without a device: copies between blocks and rows on the host."""

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from vllm.v1.kv_offload.base import (
    BlockIDsLoadStoreSpec,
    CanonicalKVCacheRef,
    CanonicalKVCaches,
    CopyRun,
    GPULoadStoreSpec,
    LoadStoreSpec,
    OffloadingWorker,
    TransferResult,
)

from kvstore_vllm.offload.canonical_layout import page_sizes
from kvstore_vllm.offload.region import StoreRegion


class _Fragments(NamedTuple):
    """A run of a layer's bytes, as uint8.

    ``blocks`` is ``[blocks, fragments, bytes]``, and ``rows`` is ``[rows, blocks of a row,
    fragments, bytes]``.
    """

    blocks: np.ndarray
    rows: np.ndarray


class _Layer(NamedTuple):
    """A layer's bytes in all blocks and rows.

    Ranks with the same bytes take turns to write them: rank ``turn`` of ``writers`` writes block
    ``b`` of all rows if ``b % writers == turn``.
    """

    runs: Sequence[_Fragments]
    block_bytes: int
    writers: int = 1
    turn: int = 0


class HostCopyWorker(OffloadingWorker):
    """Copies as ``CPUOffloadingWorker`` does on a device, before a submission returns.

    The rank's thread uses it. Raises ``ValueError`` if the layers do not fit a row, or if one has
    no canonical layout although ``canonical`` asks for it.
    """

    def __init__(
        self,
        kv_caches: CanonicalKVCaches,
        blocks_per_chunk: int,
        region: StoreRegion,
        *,
        canonical: bool = False,
    ) -> None:
        """``canonical`` places bytes as vLLM's mapping of each layer says."""
        self._blocks_per_chunk = blocks_per_chunk
        self._region = region
        if canonical:
            sizes, next_view = page_sizes(kv_caches), region.create_next_canonical_view
        else:
            sizes = [each.page_size_bytes for each in kv_caches.tensors]
            next_view = region.create_next_worker_view
        places = [
            (
                each.tensor.view(torch.uint8),
                next_view(size * blocks_per_chunk)
                .view(torch.uint8)
                .unflatten(1, (blocks_per_chunk, size)),
            )
            for each, size in zip(kv_caches.tensors, sizes, strict=True)
        ]
        self._groups: Sequence[Sequence[_Layer]] = [
            [_layer(places[ref.tensor_idx], ref, canonical=canonical) for ref in group]
            for group in kv_caches.group_data_refs
        ]
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
        self._groups = []
        self._region.cleanup()

    def _copy(
        self, job_id: int, blocks: GPULoadStoreSpec, rows: LoadStoreSpec, *, to_blocks: bool
    ) -> bool:
        assert isinstance(rows, BlockIDsLoadStoreSpec)
        begin = time.monotonic()
        byte_count = 0
        for block, row, part, layer in self._pieces(blocks, rows.block_ids):
            number = row * self._blocks_per_chunk + part
            if not to_blocks and number % layer.writers != layer.turn:
                continue
            for run in layer.runs:
                if to_blocks:
                    np.copyto(run.blocks[block], run.rows[row, part])
                else:
                    np.copyto(run.rows[row, part], run.blocks[block])
            byte_count += layer.block_bytes
        took = time.monotonic() - begin
        self._ended.append(TransferResult(job_id, True, byte_count, took))  # noqa: FBT003  # vLLM's field
        return True

    def _pieces(
        self, blocks: GPULoadStoreSpec, rows: np.ndarray
    ) -> Iterator[tuple[int, int, int, _Layer]]:
        """Yields each block with its row, its part of the row, and each layer."""
        block_ids = iter(blocks.block_ids.tolist())
        row_ids = rows.tolist()
        first_row = 0
        for layers, size, index in zip(
            self._groups, blocks.group_sizes, blocks.block_indices, strict=True
        ):
            # A row of several blocks may begin before the first block that is copied.
            skipped = index % self._blocks_per_chunk
            for position in range(skipped, skipped + size):
                block = next(block_ids)
                row = row_ids[first_row + position // self._blocks_per_chunk]
                for layer in layers:
                    yield block, row, position % self._blocks_per_chunk, layer
            if size:
                first_row += -(-(skipped + size) // self._blocks_per_chunk)


def _layer(
    places: tuple[torch.Tensor, torch.Tensor], ref: CanonicalKVCacheRef, *, canonical: bool
) -> _Layer:
    """Returns a layer's place in the blocks ``[blocks, bytes]`` of its tensor, and in the rows."""
    blocks, rows = places
    size = ref.page_size_bytes
    if not canonical:
        whole = CopyRun(0, 0, size, 1, size, size)
        return _Layer([_fragments(blocks, rows, whole)], size)
    mapping = ref.mapping
    assert mapping is not None
    runs = [_fragments(blocks, rows, run) for run in mapping.runs]
    return _Layer(runs, size, mapping.num_writers, mapping.writer_index)


def _fragments(blocks: torch.Tensor, rows: torch.Tensor, run: CopyRun) -> _Fragments:
    """Returns a run's bytes in all blocks and rows, without touching them."""
    shape = (run.num_fragments, run.fragment_size)
    return _Fragments(
        blocks.as_strided(
            (blocks.shape[0], *shape),
            (blocks.stride(0), run.local_stride, 1),
            blocks.storage_offset() + run.local_offset,
        ).numpy(),
        rows.as_strided(
            (*rows.shape[:2], *shape),
            (rows.stride(0), rows.stride(1), run.canonical_stride, 1),
            rows.storage_offset() + run.canonical_offset,
        ).numpy(),
    )
