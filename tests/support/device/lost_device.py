"""A device that fails for good in one process: every call of cupy and torch fails there.

A process whose id is the name of a file in ``KVSTORE_TEST_CARD_LOST`` has lost its device.
"""

import gc
import os
import sys
from pathlib import Path
from typing import Any

LOST = os.environ.get("KVSTORE_TEST_CARD_LOST", "")
ILLEGAL = "an illegal memory access was encountered"


def lost() -> bool:
    """Returns whether this process has lost the device."""
    return bool(LOST) and (Path(LOST) / str(os.getpid())).exists()


class Losable:
    """A module of functions, each of which raises ``error`` once the device is lost."""

    def __init__(self, module: Any, error: Exception) -> None:  # noqa: ANN401  # functions by name
        self._module = module
        self._error = error

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  # as above
        if callable(found := getattr(self._module, name)) and not isinstance(found, type):
            return lambda *arguments: self._call(found, arguments)
        return found

    def _call(self, function: Any, arguments: tuple[Any, ...]) -> Any:  # noqa: ANN401
        if lost():
            raise self._error
        return function(*arguments)


class Event:
    """``torch.cuda.Event``, as far as an engine's waits use it."""

    def record(self, stream: object) -> None:
        """Does nothing: all work that was begun is done."""

    def synchronize(self) -> None:
        """Waits for nothing, or raises as torch does."""
        wait_as_torch(None)


def wait_as_torch(device: object) -> None:
    """Does as ``torch.cuda.synchronize`` does."""
    del device
    if lost():
        raise sys.modules["torch"].AcceleratorError(f"CUDA error: {ILLEGAL}")


def wait_on_card() -> None:
    """Make the waits of an engine, whose model is on the CPU, wait for the device and its pages."""
    if "inference_worker.model.device" not in sys.modules:
        return
    work = sys.modules["inference_worker.model.device"].DeviceWork
    torch_cuda = sys.modules["torch"].cuda
    torch_cuda.Event, torch_cuda.synchronize = Event, wait_as_torch

    def begin(waiting: Any, device: object = None) -> None:  # noqa: ANN401  # a DeviceWork
        waiting._device, waiting._stream = device, "the card's"

    work.__init__ = begin
    for each in gc.get_objects():
        if type(each) is work:
            begin(each)
