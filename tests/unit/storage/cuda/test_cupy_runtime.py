"""The server's calls of cupy: which, in which order, and what is missing where there is none."""

import ctypes
import sys
from importlib.util import find_spec

import pytest

from device.card import UUID, Card
from device.cupy_stand_in import cupy_on
from device.driver_stand_in import driver_library
from kvstore.storage.cuda import cuda_driver
from kvstore.storage.cuda.cuda_driver import CopyAttributes
from kvstore.storage.cuda.cupy_runtime import CupyRuntime
from kvstore.storage.cuda.device_memory import CudaDevice
from kvstore.storage.errors import CudaFailed, DeviceUnavailable
from kvstore.storage.slot_copies import DeviceCopy

SIZE = 4096


@pytest.fixture
def card() -> Card:
    """A small device."""
    return Card(4 * SIZE)


def runtime_on(card: Card, monkeypatch: pytest.MonkeyPatch, batched: str) -> CupyRuntime:
    """Returns the runtime on a stand-in of cupy, and of a driver with that batched copy."""
    monkeypatch.setitem(sys.modules, "cupy", cupy_on(card))
    monkeypatch.setattr(cuda_driver, "_load", lambda: driver_library(card, batched))
    return CupyRuntime()


@pytest.fixture
def runtime(card: Card, monkeypatch: pytest.MonkeyPatch) -> CupyRuntime:
    """The runtime on a stand-in of cupy and of the newest driver."""
    return runtime_on(card, monkeypatch, "cuMemcpyBatchAsync_v2")


def test_memory_is_allocated_cleared_exported_and_given_back(
    card: Card, runtime: CupyRuntime
) -> None:
    """Each step is the plain call of CUDA's, on a device that was selected first."""
    assert runtime.select(0) == UUID
    address = runtime.allocate(SIZE)
    runtime.fill(address, SIZE, 0, runtime.make_stream())
    assert ctypes.string_at(address, SIZE) == bytes(SIZE)
    assert runtime.export(address) == (card.handle(address), 0)
    assert runtime.room() == (3 * SIZE, 4 * SIZE)
    runtime.give_back(address)
    wanted = ["cuInit", "getDeviceCount", "cuDevicePrimaryCtxRetain", "setDevice"]
    wanted += ["cuDeviceGetAttribute", "malloc"]
    wanted += ["streamCreateWithFlags", "memsetAsync", "streamSynchronize"]
    wanted += ["ipcGetMemHandle", "memGetInfo", "free"]
    assert card.calls == wanted
    assert card.memory == {}


@pytest.mark.parametrize("bus_id", ["0000:3B:00.0", "10000000:3B:00.0"])
def test_a_device_tells_where_it_is_attached(card: Card, runtime: CupyRuntime, bus_id: str) -> None:
    """The driver names its place."""
    card.pci_bus_id = bus_id
    assert runtime.pci_bus_id(0) == bus_id
    with pytest.raises(CudaFailed, match="cuDeviceGet: CUresult 101"):
        runtime.pci_bus_id(1)


def test_memory_is_filled_and_read(card: Card, runtime: CupyRuntime) -> None:
    """A piece of an allocation is written and copied to the host, and its neighbours are not."""
    address, stream = runtime.allocate(SIZE), runtime.make_stream()
    runtime.fill(address, SIZE, 1, stream)
    runtime.fill(address + 512, 512, 7, stream)
    copy = runtime.read(address + 256, 512, stream)
    assert bytes(copy) == bytes([1]) * 256 + bytes([7]) * 256
    runtime.fill(address, SIZE, 0, stream)
    assert copy[0] == 1
    for call in ("memcpyAsync", "streamSynchronize"):
        card.fail = call
        with pytest.raises(CudaFailed, match=call):
            runtime.read(address, 1, stream)


def test_filling_and_reading_wait_for_no_other_stream(card: Card, runtime: CupyRuntime) -> None:
    """Copies under way stay under way."""
    address, stream, other = runtime.allocate(SIZE), runtime.make_stream(), runtime.make_stream()
    into = bytearray(SIZE)
    runtime.begin_read(address, memoryview(into), other)
    runtime.fill(address, SIZE, 5, stream)
    assert bytes(runtime.read(address, SIZE, stream)) == bytes([5]) * SIZE
    assert (len(card.begun[other]), any(into)) == (1, False)
    assert "deviceSynchronize" not in card.calls


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


def test_an_event_ends_what_was_begun_before_it(card: Card, runtime: CupyRuntime) -> None:
    """And no work begun after it; it is destroyed, also if CUDA refuses."""
    address, stream = runtime.allocate(SIZE), runtime.make_stream()
    runtime.fill(address, SIZE, 3, stream)
    contents = [bytearray(8), bytearray(8)]
    events = []
    for each in contents:
        runtime.begin_read(address, memoryview(each), stream)
        events.append(runtime.record_event(stream))
    assert not any(map(any, contents))
    runtime.wait_for_event(events[0])
    assert [any(each) for each in contents] == [True, False]
    card.fail = "eventSynchronize"
    with pytest.raises(CudaFailed, match="eventSynchronize"):
        runtime.wait_for_event(events[1])
    card.fail = "eventRecord"
    with pytest.raises(CudaFailed, match="eventRecord"):
        runtime.record_event(stream)
    assert card.calls.count("eventCreateWithFlags") == card.calls.count("eventDestroy") == 3
    assert runtime._runtime.events == set()


@pytest.mark.parametrize("batched", ["cuMemcpyBatchAsync", "cuMemcpyBatchAsync_v2"])
def test_many_copies_are_begun_by_one_call(
    card: Card, monkeypatch: pytest.MonkeyPatch, batched: str
) -> None:
    """By that of CUDA 12.8, with the index of a failure, and that of CUDA 13, without one."""
    runtime = runtime_on(card, monkeypatch, batched)
    runtime.select(0)
    address, stream = runtime.allocate(SIZE), runtime.make_stream()
    contents = [memoryview(bytes([n + 1]) * (100 + n)) for n in range(3)]
    places = range(address, address + SIZE, 512)
    read = [memoryview(bytearray(each.nbytes)) for each in contents]
    inwards = [DeviceCopy(*each, inwards=True) for each in zip(places, contents, strict=False)]
    outwards = [DeviceCopy(*each, inwards=False) for each in zip(places, read, strict=False)]
    for copies in (inwards, outwards):
        assert runtime.begin_batch(copies, stream)
        assert len(card.begun[stream]) == 3, "nothing is copied before it is waited for"
        runtime.wait(stream)
    assert read == contents
    assert card.calls.count(batched) == 2
    assert "memcpyAsync" not in card.calls
    card.fail = batched
    with pytest.raises(CudaFailed, match=f"{batched}: CUresult 1"):
        runtime.begin_batch(inwards, stream)


def test_an_older_driver_begins_no_batch(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before CUDA 12.8 there is no such call, which is no error."""
    runtime = runtime_on(card, monkeypatch, "")
    runtime.select(0)
    assert not runtime.begin_batch([], runtime.make_stream())


@pytest.mark.parametrize("fail", ["", "cuDeviceGetAttribute"])
def test_a_device_with_addresses_of_its_own_begins_no_batch(
    card: Card, runtime: CupyRuntime, fail: str
) -> None:
    """The batched copy takes addresses as they are, and a wrong one ends the device for good."""
    card.host_addresses, card.fail = bool(fail), fail
    runtime.select(0)
    assert not runtime.begin_batch([], runtime.make_stream())


def test_a_batch_s_attributes_are_laid_out_as_in_cuda_h() -> None:
    """24 bytes: the order of access, two locations of type and id, flags."""
    offsets = [getattr(CopyAttributes, name).offset for name, _ in CopyAttributes._fields_]
    assert (ctypes.sizeof(CopyAttributes), offsets) == (24, [0, 4, 12, 20])


def test_the_device_is_waited_for(card: Card, runtime: CupyRuntime) -> None:
    """CUDA's error there becomes one of our errors."""
    runtime.synchronize()
    assert card.calls[-1] == "deviceSynchronize"
    card.fail = "deviceSynchronize"
    with pytest.raises(CudaFailed, match="deviceSynchronize"):
        runtime.synchronize()


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
    """CUDA gives a handle for an allocation's first byte only; the export says how far in."""
    address = runtime.allocate(SIZE)
    assert runtime.export(address + 512) == (card.handle(address), 512)


def test_a_device_that_is_not_there_is_named(card: Card, runtime: CupyRuntime) -> None:
    """A number beyond the visible devices, and CUDA that refuses, say which device it is about."""
    with pytest.raises(DeviceUnavailable, match="no cuda:1: 1 devices are visible"):
        runtime.select(1)
    for call in ("setDevice", "cuDevicePrimaryCtxRetain"):
        card.fail = call
        with pytest.raises(DeviceUnavailable, match=f"cuda:0 cannot be used: {call}"):
            runtime.select(0)


@pytest.mark.parametrize("call", ["malloc", "ipcGetMemHandle", "memGetInfo"])
def test_a_refused_call_is_named(card: Card, runtime: CupyRuntime, call: str) -> None:
    """A refusal of CUDA is an error of ours with the name of the call."""
    address = runtime.allocate(SIZE)
    card.fail = call
    calls = {
        "malloc": lambda: runtime.allocate(SIZE),
        "ipcGetMemHandle": lambda: runtime.export(address),
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
