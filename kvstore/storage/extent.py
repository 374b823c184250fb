"""An extent's memory, where it comes from, and what another process needs to reach it.

Host memory and memory of a CUDA device fill these protocols, each with an export
of its own.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from kvstore.storage.copies import SlotBytes


class ExtentShape(NamedTuple):
    """Which extent it is, and how its bytes are cut: slot i begins at ``i * slot_bytes``."""

    extent_id: int
    arena_id: int
    tier: int
    slot_count: int
    slot_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots."""
        return self.slot_count * self.slot_bytes


@dataclass(frozen=True)
class HostExport:
    """Host memory behind a descriptor, to be mapped from offset 0.

    The descriptor stays the extent's and is good until the extent is closed:
    whoever keeps it for longer duplicates it.
    """

    descriptor: int
    size_bytes: int


@dataclass(frozen=True)
class CudaIpcExport:
    """Memory of a CUDA device behind a legacy IPC handle of 64 bytes.

    The handle reaches a whole allocation, of which ``size_bytes`` may be mapped;
    ``device_uuid`` has 16 bytes.
    """

    ipc_handle: bytes
    device_uuid: bytes
    size_bytes: int


# How an extent is reached.
Export: TypeAlias = HostExport | CudaIpcExport


@dataclass(frozen=True)
class ExtentDescription:
    """What a worker is told of an extent. Slot 0 is ``offset`` bytes into the export.

    ``generation_table`` has eight bytes a slot, for workers to read.
    """

    shape: ExtentShape
    offset: int
    export: Export
    generation_table: HostExport | None = None


# Takes a slot's index and returns its bytes, or None where the memory was given up.
SlotReader: TypeAlias = Callable[[int], memoryview | None]


class ExtentMemory(Protocol):
    """One allocation. Fresh memory is zero, so that no tenant sees another's bytes."""

    @property
    def shape(self) -> ExtentShape:
        """Which extent it is, and how its bytes are cut."""
        ...

    def describe(self) -> ExtentDescription:
        """Returns what another process needs to reach the memory, until ``close``."""
        ...

    def read(self, index: int) -> memoryview | None:
        """Returns a slot's bytes as they are now, or None where the memory was given up.

        Raises ``CudaFailed`` for memory of a device that cannot be read.
        """
        ...

    def reader(self) -> SlotReader:
        """Returns what reads slots as ``read`` does, made once for many of them."""
        ...

    def place(self, index: int) -> SlotBytes | None:
        """Returns where a slot's bytes are, to be copied from or to; None once given up."""
        ...

    def fill(self, index: int, value: int) -> None:
        """Writes one value, of a byte, into all bytes of a slot. Raises as ``read`` does."""
        ...

    def give_back(self) -> bool:
        """Gives memory back that no process maps; False where that failed: it is in use still."""
        ...

    def close(self) -> None:
        """Gives the memory up. Processes that mapped it keep it alive; idempotent."""
        ...


class MemorySource(Protocol):
    """Where extents' memory comes from: this machine, or a device."""

    @property
    def granularity(self) -> int:
        """Bytes that an allocation is rounded up to a multiple of."""
        ...

    def answers(self) -> bool:
        """Returns whether it works at all; False after an error that stays. May wait for work."""
        ...

    def allocate(self, shape: ExtentShape) -> ExtentMemory:
        """Allocates an extent. Raises ``NotEnoughMemory``; nothing is allocated then."""
        ...
