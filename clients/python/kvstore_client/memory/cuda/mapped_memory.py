"""All device memory of stores that this process maps."""

import logging
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, NamedTuple

from kvstore.v1 import types_pb2
from kvstore_client.errors import StoreUnavailable
from kvstore_client.memory.cuda.device_files import leave_device_files
from kvstore_client.memory.cuda.ipc_runtime import CupyRuntime

if TYPE_CHECKING:
    import torch

from concurrent.futures import Future
from queue import SimpleQueue
from threading import Thread
from typing import TypeVar

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class DeviceThread:
    """A thread that does one piece of work after the other, until the process ends."""

    def __init__(self) -> None:
        # Its put may interrupt itself, so memory's last view may be dropped anywhere.
        self._queue: SimpleQueue[Callable[[], None]] = SimpleQueue()
        Thread(target=self._run, name="kvstore-client-cuda", daemon=True).start()

    def run(self, work: Callable[[], T]) -> T:
        """Does work on the thread, and returns its result or raises its error.

        MUST NOT be called on the thread itself.
        """
        future: Future[T] = Future()

        def do() -> None:
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # raised again where it is waited for
                future.set_exception(error)

        self._queue.put(do)
        return future.result()

    def post(self, work: Callable[[], None]) -> None:
        """Does work on the thread later. Never waits. Errors of the work are logged."""
        self._queue.put(work)

    def _run(self) -> None:
        while True:
            work = self._queue.get()
            try:
                work()
            except Exception:
                _logger.exception("device_work_failed")
            # Dropped at once, because it may be a mapping's last view.
            del work


_logger = logging.getLogger(__name__)


class CudaMapping(NamedTuple):
    """Mapped memory: ``whole`` is all of it in uint8, whose views keep it mapped."""

    device: int
    whole: "torch.Tensor"


@dataclass
class _Opened:
    """An open handle, and the number of extents that use it."""

    device: int
    address: int
    store_epoch: int
    count: int = 0


class _Owner:
    """An object that every view of one mapping keeps alive."""


class CudaMemory:
    """Maps device memory, once a handle, and unmaps it after the last view of it.

    One thread with the CUDA contexts opens and closes handles, and only it knows the open ones. It
    calls ``load`` to import CUDA at the first use. The thread breaks no capture of a CUDA graph by
    another thread, except by a wait for a whole device. Any thread may use this class.
    """

    def __init__(self, load: Callable[[], CupyRuntime] = CupyRuntime) -> None:
        self._load = load
        self._thread = DeviceThread()
        self._runtime: CupyRuntime | None = None
        self._opened: dict[bytes, _Opened] = {}

    def map(
        self,
        handle: types_pb2.CudaIpcHandle,
        store_epoch: int,
        unmapped: Callable[[], None] | None,
        wait: Callable[[], None] | None = None,
    ) -> CudaMapping:
        """Maps the memory behind a handle of a store of this epoch; takes seconds the first time.

        After the last view of the result is dropped, the device thread calls ``wait``, which waits
        for all work on the memory; by default for the whole device. Then it unmaps the memory, and
        calls ``unmapped`` once for this mapping. Raises :class:`DeviceUnavailable`. Raises
        :class:`StoreUnavailable` while views exist of an earlier store's memory under an equal
        handle.
        """
        return self._thread.run(partial(self._map, handle, store_epoch, unmapped, wait))

    def synchronize(self, device: int) -> None:
        """Waits, on the calling thread, until a device with mapped memory has no work left."""
        assert self._runtime is not None
        self._runtime.synchronize(device)

    # On the device thread.

    def _begin(self) -> CupyRuntime:
        runtime = self._load()
        runtime.relax_capture()
        return runtime

    def _map(
        self,
        handle: types_pb2.CudaIpcHandle,
        store_epoch: int,
        unmapped: Callable[[], None] | None,
        wait: Callable[[], None] | None,
    ) -> CudaMapping:
        runtime = self._runtime = self._runtime or self._begin()
        key = handle.ipc_handle
        opened = self._opened.get(key)
        if opened is None:
            device = runtime.device_of(handle.device_uuid)
            opened = _Opened(device, runtime.open(device, key), store_epoch)
            self._opened[key] = opened
        elif opened.store_epoch != store_epoch:
            # CUDA would hand out the old memory again: a handle names a process by its id.
            raise StoreUnavailable("memory of an earlier store is still mapped: drop its views")
        opened.count += 1
        owner = _Owner()
        try:
            whole = runtime.tensor(opened.device, opened.address, handle.size_bytes, owner)
        except BaseException:
            self._close(key)
            raise
        wait = wait or partial(runtime.synchronize, opened.device)
        end = weakref.finalize(owner, self._dropped, os.getpid(), key, unmapped, wait)
        # At exit the driver unmaps, after the last thread that may still read.
        end.atexit = False
        return CudaMapping(opened.device, whole)

    def _unmap(
        self, key: bytes, unmapped: Callable[[], None] | None, wait: Callable[[], None]
    ) -> None:
        try:
            wait()
            self._close(key)
        except Exception as error:  # noqa: BLE001  # `wait` may be the caller's
            # Not reported: the store keeps the extent for this process until the process ends.
            _logger.warning("device_memory_kept", extra={"reason": str(error)})
            return
        if unmapped is not None:
            unmapped()

    def _close(self, key: bytes) -> None:
        opened = self._opened[key]
        opened.count -= 1
        if opened.count == 0:
            assert self._runtime is not None
            self._runtime.close(opened.device, opened.address)
            del self._opened[key]

    # On any thread, in the middle of anything.

    def _dropped(
        self,
        pid: int,
        key: bytes,
        unmapped: Callable[[], None] | None,
        wait: Callable[[], None],
    ) -> None:
        if os.getpid() == pid:
            self._thread.post(partial(self._unmap, key, unmapped, wait))


_lock = Lock()
_of_process: CudaMemory | None = None


def cuda_memory() -> CudaMemory:
    """Returns this process's CUDA memory. A forked child's finds no usable CUDA."""
    global _of_process  # noqa: PLW0603  # CUDA has one context a process and device
    with _lock:
        if _of_process is None:
            _of_process = CudaMemory()
        return _of_process


def _forget_parent() -> None:
    global _of_process, _lock  # as above
    parent_had_memory = _of_process is not None
    _lock, _of_process = Lock(), None
    if parent_had_memory:
        leave_device_files()


os.register_at_fork(after_in_child=_forget_parent)
