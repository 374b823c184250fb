"""The places of a block's bytes in an engine's memory, from vLLM's own description."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class BlockTensor(Protocol):
    """The part of vLLM's ``KVCacheTensor`` that is read: the place of layers' blocks, in bytes."""

    layers: list[str]
    layer_stride: int
    block_stride: int
    offset: int


class BlockPiece(NamedTuple):
    """Bytes of each block that are copied together: ``parts`` of ``block_stride`` bytes.

    Part p of block b begins at ``begin + p * span + b * block_stride``. If layers lie one
    after another, each layer, or each head of it, is a part. If blocks do, all layers are one
    part. ``layers`` are those of the first tensor with these bytes; ``layers_at`` and
    ``layer_stride`` give the begin of each.
    """

    layers: tuple[str, ...]
    layers_at: int
    layer_stride: int
    begin: int
    parts: int
    block_stride: int
    block_count: int

    @property
    def span(self) -> int:
        """Bytes of one part of all blocks."""
        return self.block_count * self.block_stride

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, all parts."""
        return self.parts * self.block_stride


def pieces_of(tensors: Sequence[BlockTensor], block_count: int) -> list[BlockPiece]:
    """Returns the pieces of a block in page order.

    Tensors that name the same bytes, as layers packed into blocks do, are one piece.
    """
    pieces: dict[int, BlockPiece] = {}
    for tensor in tensors:
        span = block_count * tensor.block_stride
        layered = tensor.layer_stride >= span
        piece = BlockPiece(
            layers=tuple(tensor.layers),
            layers_at=tensor.offset,
            layer_stride=tensor.layer_stride,
            begin=tensor.offset if layered else 0,
            parts=len(tensor.layers) * tensor.layer_stride // span if layered else 1,
            block_stride=tensor.block_stride,
            block_count=block_count,
        )
        pieces.setdefault(piece.begin, piece)
    return list(pieces.values())
