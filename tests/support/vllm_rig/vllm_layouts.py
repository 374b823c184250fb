"""Blocks of any of vLLM's layouts in memory of the CPU, placed as vLLM 0.32 places them.

A layout's name is the order of its axes in memory: L layers, B blocks, H heads, N tokens, C values.
Sizes are bytes.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from kvstore_vllm.blocks.block_copier import Plane, planes_of
from kvstore_vllm.blocks.block_geometry import pieces_of
from vllm_rig.block_layouts import CacheTensor

# Those of ``vllm.v1.kv_cache_layout.KVCacheLayout``.
NAMES = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
AXES = "LBHNC"


class Kind(NamedTuple):
    """Layers of one shape: MLA's have one head."""

    layers: int
    heads: int
    tokens: int
    value_bytes: int

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer of a block."""
        return self.heads * self.tokens * self.value_bytes


def planes(name: str, kinds: Sequence[Kind], block_count: int, raw: torch.Tensor) -> list[Plane]:
    """Returns the planes of blocks in ``raw``, which has ``block_count * block_bytes(kinds)``."""
    packed = block_bytes(kinds) if name[0] == "B" else None
    tensors: list[CacheTensor] = []
    caches: dict[str, torch.Tensor] = {}
    offset = 0
    for number, kind in enumerate(kinds):
        names = [f"kind {number} layer {layer}" for layer in range(kind.layers)]
        layer_stride, block_stride = _strides(name, kind, block_count, packed)
        tensors.append(CacheTensor(names, layer_stride, block_stride, offset))
        for layer, each in enumerate(names):
            caches[each] = raw[offset + layer * layer_stride :]
        offset += kind.layers * (kind.page_bytes if packed else layer_stride)
    return planes_of(pieces_of(tensors, block_count), caches)


def block_bytes(kinds: Sequence[Kind]) -> int:
    """Returns the bytes of all layers of a block."""
    return sum(kind.layers * kind.page_bytes for kind in kinds)


def _strides(name: str, kind: Kind, block_count: int, packed: int | None) -> tuple[int, int]:
    """Returns the strides of a layer and of a block, as ``compute_layout_strides`` does."""
    sizes = dict(zip(AXES, (kind.layers, block_count, *kind[1:]), strict=True))
    strides: dict[str, int] = {}
    now = 1
    for axis in reversed(name):
        strides[axis] = packed if packed and axis == "B" else now
        now = strides[axis] * sizes[axis]
    return strides["L"], strides["B"]
