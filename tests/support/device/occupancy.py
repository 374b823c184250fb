"""The number of a kernel's programs that fit into one multiprocessor, by their resources."""

from typing import Final, NamedTuple

# One warp is 32 threads, of every compute capability so far.
WARP_THREADS: Final = 32
# The rest of this file is the table "Technical Specifications per Compute Capability" of the CUDA
# C++ Programming Guide, and the rounding of cuda_occupancy.h in the CUDA toolkit.
REGISTERS: Final = 64 << 10
MOST_REGISTERS_A_THREAD: Final = 255
# A multiprocessor has four partitions, each with its own quarter of the registers and warps.
PARTITIONS: Final = 4
# The hardware hands out registers to a warp, and shared memory to a program, in these units.
REGISTER_UNIT: Final = 256
SHARED_UNIT: Final = 128
# Shared memory that CUDA keeps for itself in each program.
SHARED_RESERVED: Final = 1 << 10


class Processor(NamedTuple):
    """The limits of one multiprocessor; shared memory in bytes."""

    warps: int
    programs: int
    shared: int
    shared_a_program: int


# By compute capability: A100; L4, L40S and RTX 4090; H100 and H200; B200.
PROCESSORS: Final = {
    80: Processor(warps=64, programs=32, shared=164 << 10, shared_a_program=163 << 10),
    89: Processor(warps=48, programs=24, shared=100 << 10, shared_a_program=99 << 10),
    90: Processor(warps=64, programs=32, shared=228 << 10, shared_a_program=227 << 10),
    100: Processor(warps=64, programs=32, shared=228 << 10, shared_a_program=227 << 10),
}


def programs_a_processor(capability: int, *, registers: int, shared: int, warps: int) -> int:
    """Returns how many programs run on one multiprocessor at a time, 0 if not even one does.

    ``registers`` is a thread's, ``shared`` a program's bytes without those that CUDA reserves,
    and ``warps`` a program's.
    """
    limits = PROCESSORS[capability]
    if shared > limits.shared_a_program or registers > MOST_REGISTERS_A_THREAD:
        return 0
    of_a_warp = _rounded_up(max(1, registers) * WARP_THREADS, REGISTER_UNIT)
    warps_at_once = REGISTERS // PARTITIONS // of_a_warp * PARTITIONS
    taken = _rounded_up(shared + SHARED_RESERVED, SHARED_UNIT)
    return min(
        warps_at_once // warps,
        limits.warps // warps,
        limits.shared // taken,
        limits.programs,
    )


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit
