"""The driver's functions that the client calls, on a card of this process."""

import ctypes
import os
from threading import get_ident
from types import SimpleNamespace

from device.card import Card
from device.driver_stand_in import driver_library

RELAXED = 2
PORTABLE = 1


def require_mapped(address: int, size_bytes: int) -> None:
    """Raises ``OSError`` unless this process can read the first and the last byte."""
    # The kernel reads them for a pipe as for this process; /proc/self/mem has reserved ones too.
    ends = os.pipe()
    try:
        for place in (address, address + size_bytes - 1):
            assert os.write(ends[1], (ctypes.c_ubyte * 1).from_address(place)) == 1
    finally:
        for each in ends:
            os.close(each)


def client_driver(card: Card) -> SimpleNamespace:
    """Returns the driver's functions, called as C functions are."""
    library = driver_library(card)

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_int)
    def retain(context: "ctypes._Pointer[ctypes.c_void_p]", device: int) -> int:
        assert device == 40  # as cuDeviceGet says
        context[0] = 1  # type: ignore[call-overload]
        return 2 if card.note("cuDevicePrimaryCtxRetain") else 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))
    def exchange_mode(mode: "ctypes._Pointer[ctypes.c_int]") -> int:
        assert mode[0] == RELAXED
        mode[0] = 0
        card.relaxed.add(get_ident())
        return 0

    using: set[int] = set()

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def set_current(context: int) -> int:
        assert context == 1  # as cuDevicePrimaryCtxRetain says
        using.add(get_ident())
        return 0

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
    def register(address: int, size_bytes: int, flags: int) -> int:
        assert flags == PORTABLE
        if card.note("cuMemHostRegister_v2") or get_ident() not in using:
            return 201
        return 0 if card.register(address, size_bytes) else 712

    @ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
    def unregister(address: int) -> int:
        require_mapped(address, card.registered.pop(address))
        return 201 if card.note("cuMemHostUnregister") or get_ident() not in using else 0

    library.cuCtxSetCurrent = set_current
    library.cuMemHostRegister_v2 = register
    library.cuMemHostUnregister = unregister
    library.cuDevicePrimaryCtxRetain = retain
    library.cuThreadExchangeStreamCaptureMode = exchange_mode
    return library
