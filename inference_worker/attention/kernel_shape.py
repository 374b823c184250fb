"""Tile sizes and compile options of the attention kernels, in one place for sweeps."""

from dataclasses import dataclass
from typing import Final

# Rows of a tile: queries times the heads that share a kv head. Tensor cores need at least 16.
FEWEST_ROWS: Final = 16
MOST_ROWS: Final = 128
# Rows of values whose sums fit into a tile's registers, in bytes of the pages' dtype, padded.
ROWS_BYTES: Final = 32 << 10
# Keys of one head that are read at once, padded: 64 keys of 128 values in bfloat16.
KEYS_BYTES: Final = 16 << 10
FEWEST_KEYS: Final = 16
MOST_WARPS: Final = 8
FLOAT32_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchShape:
    """The tile sizes of one launch of the attention.

    ``programs`` fit into one multiprocessor at a time. A program has a warp for every 16 rows, at
    least ``least_warps`` and at most 8. It reads ``keys`` keys at once, or fewer if they take more
    than ``keys_bytes``. ``stages`` is Triton's ``num_stages``: how far loads of keys run ahead of
    the multiplication.
    """

    programs: int
    least_warps: int = 8
    keys: int = 64
    keys_bytes: int = KEYS_BYTES
    stages: int = 3

    def keys_of(self, head_bytes: int) -> int:
        """Returns how many keys of ``head_bytes`` bytes, a power of two, are read at once."""
        return max(FEWEST_KEYS, min(self.keys, self.keys_bytes // head_bytes))

    def warps_of(self, rows: int) -> int:
        """Returns the number of warps of a program with so many rows."""
        return max(self.least_warps, min(MOST_WARPS, rows // FEWEST_ROWS))


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelShape:
    """The launches of a step, and how many partial results a merge loads at once.

    The programs of a multiprocessor are those that fit when compiled for sm_90 by Triton 3.6 and
    3.8, with heads of 128 values in bfloat16 (docs/decisions/0041). A decode with four warps and 32
    keys spills nothing and uses at most 112 registers a thread, so at least four programs fit. With
    eight warps and 64 keys by Triton 3.6, two fit. A prefill uses 190 registers a thread: one fits.
    """

    decode: LaunchShape = LaunchShape(programs=4, least_warps=4, keys=32)
    prefill: LaunchShape = LaunchShape(programs=1, least_warps=4)
    merged: int = 32


def decode_rows(group: int) -> int:
    """Returns the rows of a decode's tile, for ``group`` query heads a kv head."""
    return max(FEWEST_ROWS, _power_of_two(group))


def prefill_rows(group: int, dims: int, value_bytes: int) -> int:
    """Returns the rows of a prefill's tile, for heads of ``dims`` values, padded.

    In float32 it has half as many: tensor cores split each value into three parts, and with more
    rows a kernel for sm_89 needs more than its 99 KiB of shared memory.
    """
    rows = ROWS_BYTES // (dims * value_bytes)
    if value_bytes == FLOAT32_BYTES:
        rows //= 2
    return max(decode_rows(group), min(MOST_ROWS, rows))


def padded_dims(head_dim: int) -> int:
    """Returns the values of a head as kernels compute with them: a power of two, at least 16."""
    return max(16, _power_of_two(head_dim))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
