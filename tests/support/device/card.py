"""A CUDA device that is memory of this process: what both sides ask of CUDA, without CUDA."""

import ctypes
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from hashlib import shake_256
from threading import get_ident
from typing import TYPE_CHECKING

from device.streams import Streams
from kvstore.storage.cuda.cupy_runtime import DeviceMemoryInfo, Exported, address_of
from kvstore.storage.errors import CudaFailed
from kvstore.storage.slot_copies import DeviceCopy
from kvstore_client.errors import DeviceUnavailable

if TYPE_CHECKING:
    import torch

# With a zero byte inside, as one device in sixteen has it.
UUID = bytes([7, 0, *range(1, 15)])
# What memory holds that nobody cleared.
DIRT = 0xDD
# The errors of a device that failed for good.
EVERY_CALL = "every call"


class Card:
    """One device of ``size_bytes``. ``calls`` are the calls so far, ``threads`` their threads.

    ``fail`` names the call that is refused from now on, or is EVERY_CALL. ``mapped`` counts the
    mappings of each address. Work begun on a stream is done at a wait for the stream, or for a
    later event of it, and not before. ``registered`` has the size of each registration by its
    address. ``batches`` says whether one call can begin many copies, ``host_addresses`` whether
    the device uses the host's addresses of registered memory. Handles are of ``own_process`` if
    process ids are equal. While a stream is ``capturing``, the card refuses calls of threads
    whose mode is not relaxed, and waits for the device. The capture is then ``capture_broken``.
    """

    def __init__(self, size_bytes: int = 64 << 20, uuid: bytes = UUID) -> None:
        self.size_bytes = size_bytes
        self.uuid = uuid
        self.pci_bus_id = "0000:3B:00.0"
        self.memory: dict[int, ctypes.Array[ctypes.c_ubyte]] = {}
        self.mapped: Counter[int] = Counter()
        self.calls: list[str] = []
        self.threads: set[int] = set()
        self.fail = ""
        self.streams = Streams()
        self.batches = self.host_addresses = True
        self.registered: dict[int, int] = {}
        self.own_process = self.capturing = self.capture_broken = False
        self.relaxed: set[int] = set()

    def note(self, call: str) -> bool:
        """Counts a call; returns whether it is to be refused."""
        self.calls.append(call)
        self.threads.add(get_ident())
        if self.capturing and (get_ident() not in self.relaxed or "ynchronize" in call):
            self.capture_broken = True
            return True
        return self.fail in (call, EVERY_CALL)

    @property
    def begun(self) -> dict[int, list[Callable[[], object]]]:
        """The work of each stream that is begun and not done."""
        return self.streams.begun

    @property
    def available_bytes(self) -> int:
        """Bytes that are not allocated."""
        return self.size_bytes - sum(len(each) for each in self.memory.values())

    def malloc(self, size_bytes: int) -> int | None:
        """Returns the address of memory full of somebody else's bytes, or None."""
        if size_bytes > self.available_bytes:
            return None
        memory = (ctypes.c_ubyte * size_bytes)()
        ctypes.memset(memory, DIRT, size_bytes)
        address = ctypes.addressof(memory)
        self.memory[address] = memory
        return address

    def handle(self, address: int) -> bytes:
        """Returns the 64 bytes that name an allocation."""
        return shake_256(self.uuid + address.to_bytes(8, "little")).digest(64)

    def open(self, ipc_handle: bytes) -> int | None:
        """Returns the address that a handle reaches, or None."""
        for address in self.memory:
            if self.handle(address) == ipc_handle:
                self.mapped[address] += 1
                return address
        return None

    def register(self, address: int, size_bytes: int) -> bool:
        """Registers memory of the host; False where some of it is already."""
        if any(
            start < address + size_bytes and address < start + size
            for start, size in self.registered.items()
        ):
            return False
        self.registered[address] = size_bytes
        return True

    def view(self, address: int, size_bytes: int, owner: object) -> "ctypes.Array[ctypes.c_ubyte]":
        """Returns a piece of memory that keeps its owner."""
        piece = (ctypes.c_ubyte * size_bytes).from_address(address)
        piece.owner = owner  # type: ignore[attr-defined]
        return piece


class ServerCuda:
    """``kvstore.storage.cuda.cupy_runtime.CupyRuntime`` on a card."""

    def __init__(self, card: Card) -> None:
        self._card = card

    def select(self, device: int) -> bytes:
        """Returns the UUID of the one device."""
        assert device == 0
        self._note("select")
        return self._card.uuid

    def use(self, device: int) -> None:
        """Selects the one device."""
        assert device == 0
        self._note("use")

    def pci_bus_id(self, device: int) -> str:
        """Returns where the one device is attached."""
        assert device == 0
        self._note("pci_bus_id")
        return self._card.pci_bus_id

    def room(self) -> DeviceMemoryInfo:
        """Returns what is left."""
        self._note("room")
        return DeviceMemoryInfo(self._card.available_bytes, self._card.size_bytes)

    def allocate(self, size_bytes: int) -> int:
        """Allocates dirty memory."""
        self._note("allocate")
        address = self._card.malloc(size_bytes)
        if address is None:
            raise CudaFailed("allocate: out of memory")
        return address

    def fill(self, address: int, size_bytes: int, value: int, stream: int) -> None:
        """Writes one value into all bytes."""
        self._note("fill")
        self._card.streams.begin_fill(address, value, size_bytes, stream)
        self._card.streams.wait(stream)

    def read(self, address: int, size_bytes: int, stream: int) -> memoryview:
        """Copy."""
        self._note("read")
        self._card.streams.wait(stream)
        return memoryview(ctypes.string_at(address, size_bytes))

    def make_stream(self) -> int:
        """Returns a stream."""
        self._note("make_stream")
        return self._card.streams.make_stream()

    def begin_write(self, address: int, content: memoryview, stream: int) -> None:
        """Begins to copy to the device."""
        self._note("begin_write")
        self._card.streams.begin_copy(address, address_of(content), content.nbytes, stream)

    def begin_read(self, address: int, into: memoryview, stream: int) -> None:
        """Begins to copy to the host."""
        self._note("begin_read")
        self._card.streams.begin_copy(address_of(into), address, into.nbytes, stream)

    def begin_batch(self, copies: Items[DeviceCopy], stream: int) -> bool:
        """Begins copies by one call, the last first; begins half of them if the call is refused."""
        if not self._card.batches:
            return False
        refused = self._card.note("begin_batch")
        begun = copies[: len(copies) // 2] if refused else copies
        for address, content, inwards in reversed(begun):
            ends = (address, address_of(content)) if inwards else (address_of(content), address)
            self._card.streams.begin_copy(*ends, content.nbytes, stream)
        if refused:
            raise CudaFailed("begin_batch: refused")
        return True

    def wait(self, stream: int) -> None:
        """Does the work that was begun; if that fails, none of it is under way either."""
        try:
            self._note("wait")
        except CudaFailed:
            self._card.streams.lose_all(stream)
            raise
        self._card.streams.wait(stream)

    def record_event(self, stream: int) -> int:
        """Returns an event after what was begun."""
        self._note("record_event")
        event = self._card.streams.make_event()
        self._card.streams.record(event, stream)
        return event

    def wait_for_event(self, event: int) -> None:
        """Do the copies begun before the event; if that fails, none of them is under way either."""
        try:
            self._note("wait_for_event")
        except CudaFailed:
            self._card.streams.lose(event)
            raise
        self._card.streams.wait_for(event)

    def synchronize(self) -> None:
        """Does all that was begun."""
        self._note("synchronize")
        for stream in self._card.begun:
            self._card.streams.wait(stream)

    def register(self, address: int, size_bytes: int) -> None:
        """Registers what is not registered yet."""
        self._note("register")
        if not self._card.register(address, size_bytes):
            raise CudaFailed("register: already registered")

    def unregister(self, address: int) -> None:
        """Forgets a registration."""
        self._note("unregister")
        del self._card.registered[address]

    def export(self, address: int) -> Exported:
        """Returns the handle; memory begins where the handle reaches."""
        self._note("export")
        return Exported(self._card.handle(address), 0)

    def give_back(self, address: int) -> None:
        """Gives memory back, which nobody may have mapped."""
        self._note("give_back")
        assert not self._card.mapped[address]
        del self._card.memory[address]

    def _note(self, call: str) -> None:
        if self._card.note(call):
            raise CudaFailed(f"{call}: refused")


class ClientCuda:
    """``kvstore_client.memory.cuda.ipc_runtime.CupyRuntime`` on cards, in this process's order."""

    def __init__(self, *cards: Card) -> None:
        self._cards = cards

    def device_of(self, uuid: bytes) -> int:
        """Finds a card by its UUID."""
        for device, card in enumerate(self._cards):
            if card.uuid == uuid:
                return device
        raise DeviceUnavailable("no such device")

    def relax_capture(self) -> None:
        """Sets the calling thread's mode to relaxed."""
        for card in self._cards:
            card.relaxed.add(get_ident())

    def open(self, device: int, ipc_handle: bytes) -> int:
        """Map."""
        self._note(device, "open")
        address = self._cards[device].open(ipc_handle)
        assert address is not None
        return address

    def tensor(self, device: int, address: int, size_bytes: int, owner: object) -> "torch.Tensor":
        """Returns the memory, which keeps its owner."""
        import torch  # noqa: PLC0415  # the server's side has none

        self._note(device, "tensor")
        piece = self._cards[device].view(address, size_bytes, owner)
        return torch.frombuffer(piece, dtype=torch.uint8)

    def close(self, device: int, address: int) -> None:
        """Unmap."""
        self._note(device, "close")
        self._cards[device].mapped[address] -= 1

    def synchronize(self, device: int) -> None:
        """Waits for nothing."""
        self._cards[device].calls.append("synchronize")

    def _note(self, device: int, call: str) -> None:
        if self._cards[device].note(call):
            raise DeviceUnavailable(f"CUDA refused {call}")
