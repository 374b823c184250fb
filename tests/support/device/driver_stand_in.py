"""The CUDA driver's functions on a card of this process, called as C functions are."""

import ctypes
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from device.card import Card
from kvstore.storage.cuda.cuda_driver import CopyAttributes

# CU_MEMCPY_SRC_ACCESS_ORDER_STREAM and _ANY of cuda.h.
IN_STREAM_ORDER, IN_ANY_ORDER = 1, 3


def driver_library(card: Card, batched: str = "cuMemcpyBatchAsync_v2") -> SimpleNamespace:
    """Returns the driver's functions on a card, called as C functions are.

    ``batched`` names its batched copy, which has the arguments of that name; or is empty.
    """
    int_p, byte_p = ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_ubyte * 16)
    size_p, address_p = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_ulonglong)
    function = ctypes.CFUNCTYPE

    @function(ctypes.c_int, ctypes.c_uint)
    def init(flags: int) -> int:
        assert flags == 0
        return 100 if card.note("cuInit") else 0

    @function(ctypes.c_int, int_p, ctypes.c_int)
    def device_get(device: "ctypes._Pointer[ctypes.c_int]", ordinal: int) -> int:
        device[0] = ordinal + 40  # type: ignore[call-overload]
        return 0 if ordinal == 0 else 101

    @function(ctypes.c_int, byte_p, ctypes.c_int)
    def get_uuid(uuid: "ctypes._Pointer[ctypes.Array[ctypes.c_ubyte]]", device: int) -> int:
        assert device == 40
        uuid[0][:] = list(card.uuid)
        return 0

    @function(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_int)
    def get_pci_bus_id(name: int, size: int, device: int) -> int:
        assert device == 40
        text = card.pci_bus_id.encode() + b"\0"
        assert len(text) <= size
        ctypes.memmove(name, text, len(text))
        return 0

    @function(ctypes.c_int, address_p, size_p, ctypes.c_ulonglong)
    def address_range(
        base: "ctypes._Pointer[ctypes.c_ulonglong]",
        size: "ctypes._Pointer[ctypes.c_size_t]",
        address: int,
    ) -> int:
        for start, memory in card.memory.items():
            if start <= address < start + len(memory):
                base[0], size[0] = start, len(memory)  # type: ignore[call-overload]
                return 0
        return 1

    @function(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
    def retain(context: "ctypes._Pointer[ctypes.c_void_p]", device: int) -> int:
        assert device == 40
        context[0] = 1  # type: ignore[call-overload]
        return 2 if card.note("cuDevicePrimaryCtxRetain") else 0

    library = SimpleNamespace(
        cuInit=init,
        cuDevicePrimaryCtxRetain=retain,
        cuDeviceGet=device_get,
        cuDeviceGetUuid_v2=get_uuid,
        cuDeviceGetAttribute=_attribute(card),
        cuDeviceGetPCIBusId=get_pci_bus_id,
        cuMemGetAddressRange_v2=address_range,
        cuMemcpyAsync=_plain_copy(card),
    )
    if batched:
        setattr(library, batched, _batched_copy(card, batched))
    return library


def _attribute(card: Card) -> Callable[..., int]:
    """Returns the function that tells whether the card uses the host's addresses."""

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.c_int, ctypes.c_int)
    def get(value: "ctypes._Pointer[ctypes.c_int]", attribute: int, device: int) -> int:
        assert (attribute, device) == (91, 40)
        value[0] = int(card.host_addresses)  # type: ignore[call-overload]
        return 1 if card.note("cuDeviceGetAttribute") else 0

    return get


def _plain_copy(card: Card) -> Callable[..., int]:
    """Returns the copy of one run of bytes between any two memories."""

    @ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_ulonglong, ctypes.c_ulonglong, ctypes.c_size_t, ctypes.c_void_p
    )
    def copy(target: int, source: int, size: int, stream: int) -> int:
        card.streams.begin_copy(target, source, size, stream)
        return 1 if card.note("cuMemcpyAsync") else 0

    return copy


def _batched_copy(card: Card, name: str) -> Callable[..., int]:
    """Returns the batched copy with the arguments of ``name``, as cuda.h has them."""
    size_p, address_p = ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_ulonglong)
    arrays = (address_p, address_p, size_p, ctypes.c_size_t)
    attributes = (ctypes.POINTER(CopyAttributes), size_p, ctypes.c_size_t)
    # The index of a failure, which CUDA 13 does not return.
    failure = () if name == "cuMemcpyBatchAsync_v2" else (size_p,)

    def batch(*arguments: Any) -> int:  # noqa: ANN401  # as C passes them
        targets, sources, sizes, count, sets, first, set_count, *failed, stream = arguments
        assert (set_count, first[0], sets[0].flags) == (1, 0, 0)
        assert sets[0].srcAccessOrder in {IN_STREAM_ORDER, IN_ANY_ORDER}
        if card.note(name):
            for each in failed:
                each[0] = 0
            return 1
        for number in range(count):
            card.streams.begin_copy(targets[number], sources[number], sizes[number], stream)
        return 0

    prototype = ctypes.CFUNCTYPE(ctypes.c_int, *arrays, *attributes, *failure, ctypes.c_void_p)
    return prototype(batch)
