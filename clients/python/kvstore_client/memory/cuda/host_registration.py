"""Host memory of the store, registered with a CUDA device in pieces."""

import math
import mmap

# The limit that vLLM 0.32 sets (v1/kv_offload/cpu/gpu_worker.py). One registration beyond 512 GiB
# fails on drivers since R580.
PIECE_BYTES = 64 << 30


def slots_per_piece(slot_bytes: int) -> int:
    """Returns the number of slots in each registered piece of an extent, but the last.

    A piece ends between slots and between the kernel's pages: CUDA refuses a copy that spans two
    registrations.
    """
    unit = math.lcm(slot_bytes, mmap.PAGESIZE)
    return max(PIECE_BYTES // unit, 1) * unit // slot_bytes
