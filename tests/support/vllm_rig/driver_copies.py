"""Copies by address with the CUDA driver alone, in place of vLLM's operation."""

import ctypes
from typing import Any

import torch

from device.driver_stand_in import IN_ANY_ORDER, IN_STREAM_ORDER
from kvstore.storage.cuda.cuda_driver import BATCHED, BATCHED_12_8, CopyAttributes, CudaDriver
from kvstore_vllm.blocks.descriptor_copier import Numbers


class DriverCopies:
    """A ``Submit`` on the current stream: one call to drivers of CUDA 12.8 on, else one a copy.

    Source: ``cuMemcpyBatchAsync`` and ``cuMemcpyAsync`` in cuda.h.
    """

    def __init__(self, library: Any = None, stream: int | None = None) -> None:  # noqa: ANN401
        """``library`` has the driver's functions. Tests without torch's streams name one."""
        self._library = library or ctypes.CDLL("libcuda.so.1")
        self._stream = stream
        self._batches = CudaDriver(library).copies_batches(0)

    def __call__(
        self, sources: Numbers, targets: Numbers, sizes: Numbers, *, any_order: bool
    ) -> None:
        """Begins the copies; raises ``RuntimeError``."""
        stream = ctypes.c_void_p(
            torch.cuda.current_stream().cuda_stream if self._stream is None else self._stream
        )
        if self._batches:
            self._batch(
                sources, targets, sizes, IN_ANY_ORDER if any_order else IN_STREAM_ORDER, stream
            )
            return
        for source, target, size in zip(sources, targets, sizes, strict=True):
            self._call(
                "cuMemcpyAsync",
                ctypes.c_ulonglong(target),
                ctypes.c_ulonglong(source),
                ctypes.c_size_t(size),
                stream,
            )

    def _batch(
        self,
        sources: Numbers,
        targets: Numbers,
        sizes: Numbers,
        order: int,
        stream: ctypes.c_void_p,
    ) -> None:
        addresses, bytes_of = ctypes.POINTER(ctypes.c_ulonglong), ctypes.POINTER(ctypes.c_size_t)
        attributes, first = CopyAttributes(srcAccessOrder=order), ctypes.c_size_t(0)
        arguments = [
            targets.ctypes.data_as(addresses),
            sources.ctypes.data_as(addresses),
            sizes.ctypes.data_as(bytes_of),
            ctypes.c_size_t(len(sizes)),
            ctypes.byref(attributes),
            ctypes.byref(first),
            ctypes.c_size_t(1),
        ]
        name = BATCHED
        if not hasattr(self._library, BATCHED):
            name = BATCHED_12_8
            arguments.append(ctypes.byref(ctypes.c_size_t()))
        self._call(name, *arguments, stream)

    def _call(self, name: str, *arguments: object) -> None:
        result = getattr(self._library, name)(*arguments)
        if result != 0:
            raise RuntimeError(f"{name}: CUresult {result}")
