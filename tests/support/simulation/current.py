"""The one schedule that runs: where time, chance and threads come from."""

from simulation.kernel import Kernel

_kernels: list[Kernel] = []


def begin(kernel: Kernel) -> None:
    """Makes this schedule the current one."""
    _kernels[:] = [kernel]


def kernel() -> Kernel:
    """Returns the schedule that runs."""
    return _kernels[0]


def monotonic() -> float:
    """Returns the simulated time; before the first schedule zero."""
    return _kernels[0].now if _kernels else 0.0


def random_bytes(count: int) -> bytes:
    """Returns bytes by the schedule's chance; before the first schedule zeros."""
    return _kernels[0].random.randbytes(count) if _kernels else bytes(count)
