"""The driver's functions that the client calls, on a card of this process."""

import ctypes
from threading import get_ident
from types import SimpleNamespace

from device.card import Card
from device.driver_stand_in import driver_library

RELAXED = 2


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

    library.cuDevicePrimaryCtxRetain = retain
    library.cuThreadExchangeStreamCaptureMode = exchange_mode
    return library
