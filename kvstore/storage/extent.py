"""An extent's memory, its source, and the description with which other processes map it.

Host memory and memory of a CUDA device implement these protocols, each with its own kind of export.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from kvstore.storage.held_memory import HeldMemory
from kvstore.storage.slot_copies import SlotBytes


class ExtentShape(NamedTuple):
    """An extent's id and the layout of its bytes: slot i begins at ``i * slot_bytes``.

    ``arena_offset`` is the byte of slot 0 if all extents of the arena lie side by side.
    """

    extent_id: int
    arena_id: int
    tier: int
    slot_count: int
    slot_bytes: int
    arena_offset: int = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slot_count * self.slot_bytes


@dataclass(frozen=True)
class HostExport:
    """Host memory behind a descriptor, to be mapped from offset 0.

    The descriptor belongs to the extent and is valid until the extent is closed. A caller that
    needs it longer duplicates it.
    """

    descriptor: int
    size_bytes: int


@dataclass(frozen=True)
class CudaIpcExport:
    """Memory of a CUDA device behind a legacy IPC handle of 64 bytes.

    The handle gives access to a whole allocation, of which ``size_bytes`` may be mapped.
    ``device_uuid`` has 16 bytes.
    """

    ipc_handle: bytes
    device_uuid: bytes
    size_bytes: int


# The ways to map an extent.
Export: TypeAlias = HostExport | CudaIpcExport


@dataclass(frozen=True)
class ExtentDescription:
    """An extent's description for workers. Slot 0 is ``offset`` bytes into the export.

    ``generation_table`` has eight bytes a slot, for workers to read.
    """

    shape: ExtentShape
    offset: int
    export: Export
    generation_table: HostExport | None = None


# Reads a slot by index. Returns None if the memory was freed.
SlotReader: TypeAlias = Callable[[int], memoryview | None]


class ExtentMemory(Protocol):
    """One allocation. Fresh memory is zero, so that no tenant sees another's bytes."""

    @property
    def shape(self) -> ExtentShape:
        """The extent's id, and the size and number of its slots."""
        ...

    def describe(self) -> ExtentDescription:
        """Returns the description with which other processes map the memory, until ``close``."""
        ...

    def read(self, index: int) -> memoryview | None:
        """Returns a slot's current bytes, or None if the memory was freed.

        Raises ``CudaFailed`` if the memory of a device cannot be read.
        """
        ...

    def reader(self) -> SlotReader:
        """Returns a function that reads slots as ``read`` does; cheaper for many slots."""
        ...

    def place(self, index: int) -> SlotBytes | None:
        """Returns a slot's place for copies; None if the memory was freed."""
        ...

    def fill(self, index: int, value: int) -> None:
        """Writes one byte value into all bytes of a slot. Raises as ``read`` does."""
        ...

    def give_back(self) -> bool:
        """Frees memory that no process maps. Returns False if it is still in use."""
        ...

    def close(self) -> None:
        """Frees the memory, except in processes that mapped it. Idempotent."""
        ...


class MemorySource(Protocol):
    """A source of extents' memory: this machine, or a device."""

    @property
    def held(self) -> HeldMemory:
        """The deposits of extents and their tables. Those of a device are never deposited."""
        ...

    @property
    def granularity(self) -> int:
        """Bytes; every allocation is rounded up to a multiple of them."""
        ...

    def answers(self) -> bool:
        """Returns whether the source works; False after a permanent error. May wait for work."""
        ...

    def allocate(self, shape: ExtentShape) -> ExtentMemory:
        """Allocates an extent. Raises ``NotEnoughMemory`` with nothing allocated."""
        ...

    def restore(self, shape: ExtentShape, descriptor: int) -> ExtentMemory:
        """Returns the extent behind a descriptor that a former process of the store deposited.

        The descriptor belongs to the extent from now on. Raises ``ExtentUnusable``.
        """
        ...
