"""The server's calls of cupy: which, in which order, and what is missing where there is none."""

import ctypes
import sys
from importlib.util import find_spec

import pytest
from cuda_card import UUID, Card, driver_library
from cupy_stand_in import cupy_on

from kvstore.storage import cuda_driver
from kvstore.storage.cuda_arena import CudaDevice
from kvstore.storage.cuda_runtime import CupyRuntime
from kvstore.storage.errors import CudaFailed, DeviceUnavailable

SIZE = 4096


@pytest.fixture
def card() -> Card:
    """A small device."""
    return Card(4 * SIZE)


@pytest.fixture
def runtime(card: Card, monkeypatch: pytest.MonkeyPatch) -> CupyRuntime:
    """The runtime on a stand-in of cupy and of the driver."""
    monkeypatch.setitem(sys.modules, "cupy", cupy_on(card))
    monkeypatch.setattr(cuda_driver, "_load", lambda: driver_library(card))
    return CupyRuntime()


def test_memory_is_allocated_cleared_exported_and_given_back(
    card: Card, runtime: CupyRuntime
) -> None:
    """Each step is the plain call of CUDA's, on a device that was selected first."""
    assert runtime.select(0) == UUID
    address = runtime.allocate(SIZE)
    runtime.fill(address, SIZE, 0)
    assert ctypes.string_at(address, SIZE) == bytes(SIZE)
    assert runtime.export(address) == (card.handle(address), 0)
    assert runtime.room() == (3 * SIZE, 4 * SIZE)
    runtime.give_back(address)
    wanted = ["cuInit", "getDeviceCount", "setDevice", "deviceSynchronize", "malloc", "memset"]
    wanted += ["deviceSynchronize", "ipcGetMemHandle", "memGetInfo", "free"]
    assert card.calls == wanted
    assert card.memory == {}


@pytest.mark.parametrize("bus_id", ["0000:3B:00.0", "10000000:3B:00.0"])
def test_a_device_tells_where_it_is_attached(card: Card, runtime: CupyRuntime, bus_id: str) -> None:
    """By the driver, in its own words."""
    card.pci_bus_id = bus_id
    assert runtime.pci_bus_id(0) == bus_id
    with pytest.raises(CudaFailed, match="cuDeviceGet: CUresult 101"):
        runtime.pci_bus_id(1)


def test_memory_is_filled_and_read(card: Card, runtime: CupyRuntime) -> None:
    """A piece of an allocation is written and copied to the host, and its neighbours are not."""
    address = runtime.allocate(SIZE)
    runtime.fill(address, SIZE, 1)
    runtime.fill(address + 512, 512, 7)
    copy = runtime.read(address + 256, 512)
    assert bytes(copy) == bytes([1]) * 256 + bytes([7]) * 256
    runtime.fill(address, SIZE, 0)
    assert copy[0] == 1
    card.fail = "memcpy"
    with pytest.raises(CudaFailed, match="memcpy"):
        runtime.read(address, 1)


def test_copies_are_begun_on_a_stream_and_waited_for(card: Card, runtime: CupyRuntime) -> None:
    """One asynchronous copy each, with its kind, on a stream that blocks on no other."""
    address, stream = runtime.allocate(SIZE), runtime.make_stream()
    content = bytearray(range(256))
    runtime.begin_write(address + 512, memoryview(bytes(content)), stream)
    runtime.wait(stream)
    assert ctypes.string_at(address + 512, 256) == content
    into = bytearray(512)
    runtime.begin_read(address + 256, memoryview(into), stream)
    assert not any(into)
    runtime.wait(stream)
    assert into[256:] == content
    wanted = ["streamCreateWithFlags", *["memcpyAsync", "streamSynchronize"] * 2]
    assert card.calls[2:] == wanted
    for call, failing in {
        "memcpyAsync": lambda: runtime.begin_read(address, memoryview(into), stream),
        "streamSynchronize": lambda: runtime.wait(stream),
    }.items():
        card.fail = call
        with pytest.raises(CudaFailed, match=call):
            failing()


def test_memory_of_the_host_is_registered_once(card: Card, runtime: CupyRuntime) -> None:
    """A second time is refused, by name, until it was undone."""
    runtime.register(SIZE, SIZE)
    with pytest.raises(CudaFailed, match="hostRegister"):
        runtime.register(SIZE, SIZE)
    runtime.unregister(SIZE)
    with pytest.raises(CudaFailed, match="hostUnregister"):
        runtime.unregister(SIZE)
    assert card.registered == {}


def test_an_address_inside_an_allocation_has_an_offset(card: Card, runtime: CupyRuntime) -> None:
    """A handle reaches the whole allocation, so the export says where the memory begins in it."""
    address = runtime.allocate(SIZE)
    assert runtime.export(address + 512) == (card.handle(address + 512), 512)


def test_a_device_that_is_not_there_is_named(card: Card, runtime: CupyRuntime) -> None:
    """A number beyond the visible devices, and CUDA that refuses, say which device it is about."""
    with pytest.raises(DeviceUnavailable, match="no cuda:1: 1 devices are visible"):
        runtime.select(1)
    card.fail = "setDevice"
    with pytest.raises(DeviceUnavailable, match="cuda:0 cannot be used: setDevice"):
        runtime.select(0)


@pytest.mark.parametrize("call", ["malloc", "ipcGetMemHandle", "memGetInfo"])
def test_a_refused_call_is_named(card: Card, runtime: CupyRuntime, call: str) -> None:
    """What CUDA refuses comes as one error of ours, with the call's name."""
    card.fail = call
    calls = {
        "malloc": lambda: runtime.allocate(SIZE),
        "ipcGetMemHandle": lambda: runtime.export(0),
        "memGetInfo": runtime.room,
    }
    with pytest.raises(CudaFailed, match=call):
        calls[call]()


def test_the_driver_s_refusals_are_errors(card: Card, runtime: CupyRuntime) -> None:
    """A result other than zero is never taken for an answer."""
    with pytest.raises(CudaFailed, match="cuMemGetAddressRange_v2: CUresult 1"):
        runtime.export(1)
    driver = cuda_driver.CudaDriver()
    with pytest.raises(CudaFailed, match="cuDeviceGet: CUresult 101"):
        driver.uuid(3)
    card.fail = "cuInit"
    with pytest.raises(DeviceUnavailable, match="cuInit: CUresult 100"):
        cuda_driver.CudaDriver()


@pytest.mark.skipif(find_spec("cupy") is not None, reason="cupy is here")
def test_without_cupy_the_error_says_what_to_install() -> None:
    """The real thing, where it is missing: no device, and how to get one."""
    with pytest.raises(DeviceUnavailable, match=r"pip install cupy-cuda13x"):
        CudaDevice(0)


def test_without_a_driver_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without the driver's library has no device."""
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libcuda-that-is-not-there.so.1")
    with pytest.raises(DeviceUnavailable, match="no NVIDIA driver"):
        cuda_driver.CudaDriver()
