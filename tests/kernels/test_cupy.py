"""The stand-in for cupy has cupy's own calls, as far as a machine without a driver can show it.

Our code runs against the stand-in in all other tests. Here it calls the real wheel. Without a
device CUDA refuses each call, but only after cupy has accepted the arguments.
"""

import gc
import inspect
import weakref
from typing import get_type_hints

import cupy
import pytest

from device.card import Card
from device.cupy_stand_in import Device, MemoryPointer, Runtime, UnownedMemory, cupy_on
from kvstore.storage.cuda.device_memory import CudaDevice
from kvstore.storage.errors import DeviceUnavailable
from kvstore_client import errors
from kvstore_client.memory.cuda.ipc_runtime import CupyRuntime

RUNTIME = cupy.cuda.runtime
CALLS = [
    name
    for name, each in vars(Runtime).items()
    if inspect.isfunction(each) and not name.startswith("_")
]
# Any argument of the right type: no call gets far enough to use it.
SAMPLES = {int: 1, bytes: bytes(64)}


@pytest.mark.parametrize("name", CALLS)
def test_cupy_has_the_call(name: str) -> None:
    """The wheel accepts the stand-in's arguments, and no more than these."""
    hints = get_type_hints(getattr(Runtime, name))
    hints.pop("return")
    arguments = [SAMPLES[each] for each in hints.values()]
    with pytest.raises(RUNTIME.CUDARuntimeError, match="cudaError"):
        getattr(RUNTIME, name)(*arguments)
    with pytest.raises(TypeError):
        getattr(RUNTIME, name)(*arguments, *arguments, 0, 0)


def test_all_that_the_stand_in_has_is_cupy_s() -> None:
    """No name of the stand-in's modules is missing from cupy's."""
    stand_in = cupy_on(Card())
    names = {name for name in vars(stand_in) if not name.startswith("_")}
    assert {"cuda", "ndarray", "uint8"} <= names <= set(dir(cupy))
    assert set(vars(stand_in.cuda)) <= set(dir(cupy.cuda))
    assert {name for name in vars(Device) if not name.startswith("_")} - {"card"} <= set(
        dir(cupy.cuda.Device)
    )


def test_an_array_of_foreign_memory_keeps_its_owner() -> None:
    """The wheel accepts the stand-in's description of foreign memory, and keeps its owner alive."""

    class Owner:
        """An object that keeps memory mapped."""

    owner = Owner()
    gone = weakref.ref(owner)
    memory = cupy.cuda.UnownedMemory(*UnownedMemory(4096, 64, owner, 0))
    array = cupy.ndarray((64,), cupy.uint8, cupy.cuda.MemoryPointer(*MemoryPointer(memory, 0)))
    assert (array.data.ptr, array.nbytes, array.flags.c_contiguous) == (4096, 64, True)
    del owner, memory
    gc.collect()
    assert gone() is not None
    del array
    gc.collect()
    assert gone() is None


def test_a_device_is_selected_and_waited_for() -> None:
    """Both reach CUDA, which refuses them."""
    with pytest.raises(RUNTIME.CUDARuntimeError, match="cudaError"):
        cupy.cuda.Device(0).synchronize()
    with pytest.raises(RUNTIME.CUDARuntimeError, match="cudaError"), cupy.cuda.Device(0):
        pass


def test_without_a_device_the_server_says_so() -> None:
    """With cupy installed, the server names the driver or the device that is missing."""
    with pytest.raises(DeviceUnavailable, match=r"driver|device"):
        CudaDevice(0)


def test_without_torch_for_cuda_the_client_says_so() -> None:
    """With cupy installed, the client names the torch that cannot use a device."""
    with pytest.raises(errors.DeviceUnavailable, match="was built without CUDA"):
        CupyRuntime()
