"""The client's calls of cupy and torch, their order, and the errors if one is missing."""

import sys
from importlib.util import find_spec

import pytest
import torch

from device.card import UUID, Card
from device.client_driver import client_driver
from device.cupy_stand_in import CUDARuntimeError, cupy_on
from kvstore.v1 import types_pb2
from kvstore_client.errors import DeviceUnavailable
from kvstore_client.memory.cuda import cuda_driver
from kvstore_client.memory.cuda.ipc_runtime import CupyRuntime
from kvstore_client.memory.cuda.mapped_memory import CudaMemory

SIZE = 4096


@pytest.fixture
def card() -> Card:
    """Provides a small device."""
    return Card(4 * SIZE)


@pytest.fixture
def runtime(card: Card, monkeypatch: pytest.MonkeyPatch) -> CupyRuntime:
    """Provides the runtime on stand-ins of cupy and the driver, with torch reporting CUDA."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setitem(sys.modules, "cupy", cupy_on(card))
    monkeypatch.setattr(cuda_driver, "_load", lambda: client_driver(card))
    return CupyRuntime()


def test_memory_is_opened_viewed_waited_for_and_closed(card: Card, runtime: CupyRuntime) -> None:
    """Each step is one call of CUDA, and the context exists before cupy's first call."""
    address = card.malloc(SIZE)
    assert address is not None
    device = runtime.device_of(UUID)
    assert runtime.open(device, card.handle(address)) == address
    owner = object()
    tensor = runtime.tensor(device, address, SIZE, owner)
    tensor[:] = 7
    assert bytes(card.memory[address]) == bytes([7]) * SIZE
    runtime.synchronize(device)
    runtime.close(device, address)
    wanted = ["cuInit", "getDeviceCount", "cuDevicePrimaryCtxRetain", "setDevice"]
    wanted += ["ipcOpenMemHandle", "enter 0", "exit 0"]
    wanted += ["synchronize 0", "setDevice", "ipcCloseMemHandle"]
    assert (card.calls, card.mapped[address]) == (wanted, 0)


def test_a_tensor_s_views_keep_its_owner(card: Card, runtime: CupyRuntime) -> None:
    """The last view of a tensor, through cupy's array and dlpack, releases the owner."""
    memory = CudaMemory(lambda: runtime)
    address = card.malloc(SIZE)
    assert address is not None
    handle = types_pb2.CudaIpcHandle(
        ipc_handle=card.handle(address), device_uuid=UUID, size_bytes=SIZE
    )
    gone: list[bool] = []
    view = memory.map(handle, 1, lambda: gone.append(True)).whole[8:16].view(torch.float32)
    memory._thread.run(lambda: None)
    assert (gone, card.mapped[address], view.shape[0]) == ([], 1, 2)
    del view
    memory._thread.run(lambda: None)
    assert (gone, card.mapped[address]) == ([True], 0)


def test_another_device_is_named_with_those_that_are_seen(runtime: CupyRuntime) -> None:
    """An invisible device is named by its UUID, beside the visible ones."""
    with pytest.raises(DeviceUnavailable, match=r"ff.*07000102.*CUDA_VISIBLE_DEVICES"):
        runtime.device_of(bytes([255] * 16))


def test_a_refused_call_is_named(card: Card, runtime: CupyRuntime) -> None:
    """A call that CUDA refuses raises a client error with the call's name."""
    with pytest.raises(DeviceUnavailable, match="ipcOpenMemHandle"):
        runtime.open(0, bytes(64))
    card.fail = "getDeviceCount"
    with pytest.raises(DeviceUnavailable, match="getDeviceCount"):
        runtime.device_of(UUID)
    card.fail = "cuInit"
    with pytest.raises(DeviceUnavailable, match="cuInit: CUresult 100"):
        cuda_driver.CudaDriver()


def test_equal_process_ids_are_told_as_what_they_are(card: Card, runtime: CupyRuntime) -> None:
    """CUDA's error 201 is explained with the way to run containers."""
    card.own_process = True
    with pytest.raises(DeviceUnavailable, match=r"invalid device context: .*`pid: host`.*one pod"):
        runtime.open(0, bytes(64))


def test_the_device_thread_breaks_no_capture(card: Card, runtime: CupyRuntime) -> None:
    """Mapping during a graph capture is safe if the caller configured its own wait."""
    addresses = [card.malloc(SIZE) for _ in range(2)]
    handles = [
        types_pb2.CudaIpcHandle(ipc_handle=card.handle(each), device_uuid=UUID, size_bytes=SIZE)
        for each in addresses
        if each is not None
    ]
    memory, waits = CudaMemory(lambda: runtime), list[str]()
    card.capturing = True
    view = memory.map(handles[0], 1, None, lambda: waits.append("waited")).whole
    del view
    memory._thread.run(lambda: None)
    assert (waits, card.mapped[addresses[0] or 0], card.capture_broken) == (["waited"], 0, False)
    # The default wait is for the device, which fails a capture: the memory stays mapped.
    view = memory.map(handles[1], 1, None).whole
    del view
    memory._thread.run(lambda: None)
    assert (card.mapped[addresses[1] or 0], card.capture_broken) == (1, True)


def test_work_that_failed_is_raised_as_it_is(card: Card, runtime: CupyRuntime) -> None:
    """An error of the caller's own device work is raised as it is, not as a store error."""
    card.fail = "synchronize 0"
    with pytest.raises(CUDARuntimeError):
        runtime.synchronize(0)


def test_what_is_missing_is_named(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names which of torch, its CUDA, cupy and the driver is missing."""
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(DeviceUnavailable, match=r"cupy.*pip install cupy-cuda13x"):
        CupyRuntime()
    monkeypatch.setitem(sys.modules, "cupy", cupy_on(card))
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(DeviceUnavailable, match=r"torch .* was built without CUDA"):
        CupyRuntime()
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-not-there.so.1")
    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        CupyRuntime()
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(DeviceUnavailable, match="torch cannot be loaded"):
        CupyRuntime()


@pytest.mark.skipif(find_spec("cupy") is not None, reason="cupy is here")
def test_a_process_without_cuda_maps_nothing() -> None:
    """A process without CUDA gets an error when it maps, without waiting."""
    with pytest.raises(DeviceUnavailable):
        CudaMemory().map(types_pb2.CudaIpcHandle(), 1, None)
