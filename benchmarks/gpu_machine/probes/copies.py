"""Speed of registering memory of the host, and of copies to the device and back.

Runs in the probe's own process, since it kills nothing.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

MIB: Final = 1 << 20
GB: Final = 10**9
REGISTERED: Final = 2048 * MIB
PIECE: Final = 64 * MIB
COPIED: Final = 512 * MIB
ROUNDS: Final = 6
# From CUDA's runtime: cudaHostRegisterPortable, cudaMemcpyHostToDevice and its opposite.
PORTABLE: Final = 1
TO_DEVICE: Final = 1
TO_HOST: Final = 2
NON_BLOCKING: Final = 1


def registration() -> dict[str, Any]:
    """Seconds a GB that ``cudaHostRegister`` takes for a memfd, whole and in pieces."""
    cuda = _cuda()
    facts: dict[str, Any] = {"answer": "measured", "gb": REGISTERED / GB}
    for name, touched, piece in (
        ("touched_whole", True, REGISTERED),
        ("touched_in_pieces", True, PIECE),
        ("untouched_whole", False, REGISTERED),
    ):
        with _memfd(REGISTERED, touched=touched) as address:
            begin = time.perf_counter()
            for offset in range(0, REGISTERED, piece):
                cuda.hostRegister(address + offset, piece, PORTABLE)
            registered = time.perf_counter()
            for offset in range(0, REGISTERED, piece):
                cuda.hostUnregister(address + offset)
            done = time.perf_counter()
        facts[f"{name}_s_per_gb"] = round((registered - begin) / (REGISTERED / GB), 4)
        facts[f"{name}_back_s_per_gb"] = round((done - registered) / (REGISTERED / GB), 4)
    facts["why"] = f"{facts['touched_whole_s_per_gb']} s/GB whole"
    return facts


def transfer() -> dict[str, Any]:
    """GB/s to the device, back, and both at once; of pinned, registered and pageable memory."""
    cuda = _cuda()
    near = [cuda.malloc(COPIED) for _ in range(2)]
    streams = [cuda.streamCreateWithFlags(NON_BLOCKING) for _ in range(2)]
    facts: dict[str, Any] = {"answer": "measured", "mib": COPIED // MIB}
    pinned = cuda.hostAlloc(COPIED, 0), cuda.hostAlloc(COPIED, 0)
    facts["pinned"] = _rates(cuda, pinned, near, streams)
    with _memfd(2 * COPIED, touched=True) as address:
        cuda.hostRegister(address, 2 * COPIED, PORTABLE)
        facts["registered"] = _rates(cuda, (address, address + COPIED), near, streams)
        cuda.hostUnregister(address)
        facts["pageable"] = _rates(cuda, (address, address + COPIED), near, streams)
    facts["why"] = ", ".join(
        f"{name} {facts[name]['up']}/{facts[name]['down']}/{facts[name]['both']} GB/s"
        for name in ("pinned", "registered", "pageable")
    )
    return facts


def _rates(
    cuda: Any,  # noqa: ANN401 - cupy's module
    host: tuple[int, int],
    near: list[int],
    streams: list[int],
) -> dict[str, float]:
    """Returns GB/s to the device (up), from it (down), and of both together at once."""

    def up() -> None:
        cuda.memcpyAsync(near[0], host[0], COPIED, TO_DEVICE, streams[0])

    def down() -> None:
        cuda.memcpyAsync(host[1], near[1], COPIED, TO_HOST, streams[1])

    def both() -> None:
        up()
        down()

    def rate(way: Callable[[], None], copies: int) -> float:
        seconds = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            way()
            for each in streams:
                cuda.streamSynchronize(each)
            seconds.append(time.perf_counter() - begin)
        return round(copies * COPIED / min(seconds[1:]) / GB, 1)

    return {"up": rate(up, 1), "down": rate(down, 1), "both": rate(both, 2)}


def _cuda() -> Any:  # noqa: ANN401 - cupy's module
    import cupy  # noqa: PLC0415 - where there is no device it is not asked for

    cupy.cuda.runtime.setDevice(0)
    cupy.cuda.runtime.deviceSynchronize()
    return cupy.cuda.runtime


@contextmanager
def _memfd(size: int, *, touched: bool) -> Iterator[int]:
    """Maps a memfd of ``size`` bytes, written to if ``touched``; yields its address."""
    descriptor = os.memfd_create("probe")
    try:
        os.ftruncate(descriptor, size)
        mapping = mmap.mmap(descriptor, size)
    finally:
        os.close(descriptor)
    first = ctypes.c_char.from_buffer(mapping)
    address = ctypes.addressof(first)
    if touched:
        ctypes.memset(address, 1, size)
    try:
        yield address
    finally:
        del first
        mapping.close()
