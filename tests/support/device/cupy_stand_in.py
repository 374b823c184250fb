"""As much of cupy as both sides call, with cupy's signatures, on a card of this process."""

from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from device.card import Card


class CUDARuntimeError(RuntimeError):
    """cupy's error of a call that CUDA refused, with CUDA's number of it."""

    def __init__(self, message: str, status: int = 1) -> None:
        super().__init__(message)
        self.status = status


class UnownedMemory(NamedTuple):
    """Memory by address, and who keeps it."""

    ptr: int
    size: int
    owner: object
    device_id: int


class MemoryPointer(NamedTuple):
    """A place in memory."""

    mem: UnownedMemory
    offset: int


class Device:
    """A device, to be selected for a while or waited for."""

    card: Card

    def __init__(self, number: int) -> None:
        self.number = number

    def synchronize(self) -> None:
        """Waits for the device."""
        _check(self.card.note(f"synchronize {self.number}"))

    def __enter__(self) -> None:
        self.card.note(f"enter {self.number}")

    def __exit__(self, *_: object) -> None:
        self.card.note(f"exit {self.number}")


class Runtime:
    """``cupy.cuda.runtime``: each function refuses when the card is told to fail it."""

    CUDARuntimeError = CUDARuntimeError

    def __init__(self, card: Card) -> None:
        self._card = card
        # Events that were created and not destroyed.
        self.events: set[int] = set()

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401  # whatever a module has
        """Notes each function as it is called."""
        if name.startswith("_") or name in {"CUDARuntimeError", "events"}:
            return object.__getattribute__(self, name)
        function = object.__getattribute__(self, name)

        def call(*arguments: object) -> object:
            _check(self._card.note(name))
            return function(*arguments)

        return call

    def getDeviceCount(self) -> int:  # noqa: N802  # cupy's names
        """Counts the one card."""
        return 1

    def setDevice(self, device: int) -> None:  # noqa: N802
        """Selects a device."""
        _check(device != 0)

    def deviceSynchronize(self) -> None:  # noqa: N802
        """Wait."""

    def memGetInfo(self) -> tuple[int, int]:  # noqa: N802
        """Returns what is left, and all."""
        return self._card.available_bytes, self._card.size_bytes

    def malloc(self, size: int) -> int:
        """Allocate."""
        address = self._card.malloc(size)
        _check(address is None)
        assert address is not None
        return address

    def memsetAsync(self, pointer: int, value: int, size: int, stream: int) -> None:  # noqa: N802
        """Begins to fill memory."""
        self._card.streams.begin_fill(pointer, value, size, stream)

    def streamCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        """Returns a stream, which does not block."""
        assert flags == 1
        return self._card.streams.make_stream()

    def memcpyAsync(  # noqa: N802
        self,
        target: int,
        source: int,
        size: int,
        kind: int,
        stream: int,
    ) -> None:
        """Begins a copy in the one direction or the other."""
        device = target if kind == 1 else source
        assert kind in (1, 2)
        assert any(
            start <= device and device + size <= start + len(memory)
            for start, memory in self._card.memory.items()
        )
        self._card.streams.begin_copy(target, source, size, stream)

    def streamSynchronize(self, stream: int) -> None:  # noqa: N802
        """Carries out what was begun."""
        self._card.streams.wait(stream)

    def eventCreateWithFlags(self, flags: int) -> int:  # noqa: N802
        """Returns an event without a time, at which a waiting thread sleeps."""
        assert flags == 3
        event = self._card.streams.make_event()
        self.events.add(event)
        return event

    def eventRecord(self, event: int, stream: int) -> None:  # noqa: N802
        """Records an event after the work that was begun."""
        self._card.streams.record(event, stream)

    def eventSynchronize(self, event: int) -> None:  # noqa: N802
        """Does the work that was begun before an event."""
        self._card.streams.wait_for(event)

    def eventDestroy(self, event: int) -> None:  # noqa: N802
        """Forgets an event."""
        self.events.remove(event)

    def hostRegister(self, pointer: int, size: int, flags: int) -> None:  # noqa: N802
        """Registers memory of the host, portable."""
        assert flags == 1
        _check(not self._card.register(pointer, size))

    def hostUnregister(self, pointer: int) -> None:  # noqa: N802
        """Unregister."""
        _check(self._card.registered.pop(pointer, None) is None)

    def free(self, pointer: int) -> None:
        """Gives back."""
        del self._card.memory[pointer]

    def ipcGetMemHandle(self, pointer: int) -> bytes:  # noqa: N802
        """Returns the handle of an allocation; only its first byte names it."""
        _check(pointer not in self._card.memory)
        return self._card.handle(pointer)

    def ipcOpenMemHandle(self, ipc_handle: bytes) -> int:  # noqa: N802
        """Map."""
        if self._card.own_process:
            raise CUDARuntimeError("cudaErrorDeviceUninitialized: invalid device context", 201)
        address = self._card.open(ipc_handle)
        _check(address is None)
        assert address is not None
        return address

    def ipcCloseMemHandle(self, pointer: int) -> None:  # noqa: N802
        """Unmap."""
        self._card.mapped[pointer] -= 1


def cupy_on(card: Card) -> ModuleType:
    """Returns a module that is cupy on a machine with this card."""
    module: Any = ModuleType("cupy")

    def ndarray(shape: tuple[int], dtype: type, pointer: MemoryPointer) -> np.ndarray[Any, Any]:
        assert pointer.offset == 0
        memory = pointer.mem
        return np.ndarray(shape, dtype, buffer=card.view(memory.ptr, memory.size, memory.owner))

    device = type("Device", (Device,), {"card": card})
    module.cuda = SimpleNamespace(
        runtime=Runtime(card),
        Device=device,
        UnownedMemory=UnownedMemory,
        MemoryPointer=MemoryPointer,
    )
    module.ndarray, module.uint8 = ndarray, np.uint8
    return module


def _check(refused: bool) -> None:  # noqa: FBT001  # a condition, as assert takes it
    if refused:
        raise CUDARuntimeError("cudaErrorInvalidValue: stand-in")
