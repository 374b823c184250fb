"""An extent on a device and one of the host, between which pages are copied."""

from contextlib import ExitStack, closing
from itertools import count

from device.card import Card, ServerCuda
from kvstore.storage.arenas import Arenas
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from kvstore.storage.host.host_memory import HostMemory
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.slot_copies import DeviceCopy

SLOT = 1000
COUNT = 5
# A time limit in seconds that no test comes near.
LIMIT = 30.0


class Rig:
    """An extent of five slots on a device, and one in memory that is registered for it."""

    def __init__(self, stack: ExitStack) -> None:
        self.card = Card(8 * GRANULARITY)
        self.cuda = ServerCuda(self.card)
        self.device = stack.enter_context(closing(CudaDevice(0, lambda: self.cuda)))
        numbers = count(1)
        self.upper = Arenas(
            budget_bytes=8 * GRANULARITY,
            extent_bytes=COUNT * SLOT,
            source=self.device,
            extent_ids=numbers,
        )
        self.lower = Arenas(
            budget_bytes=10 * SLOT,
            extent_bytes=COUNT * SLOT,
            source=HostMemory(register=self.device.copier.register),
            extent_ids=numbers,
            tier=2,
        )
        self.tiers = Tiers(self.upper, self.lower)
        stack.callback(self.tiers.close)
        self.first = self.upper.allocate(1, SLOT).shape.extent_id << 32
        self.second = self.lower.allocate(1, SLOT).shape.extent_id << 32
        # Each direction makes its stream with its first batch.
        for direction in (True, False):
            copy = DeviceCopy(next(iter(self.card.memory)), memoryview(bytearray(1)), direction)
            assert self.device.copier.begin_all([copy])() == [None]
        self.card.calls.clear()

    def fill(self, first: int, offset: int = 0) -> list[bytes]:
        """Writes another content into each slot of an extent; returns them."""
        contents = [bytes([offset + n + 1]) * SLOT for n in range(COUNT)]
        pages = [(first + n, memoryview(each)) for n, each in enumerate(contents)]
        assert self.tiers.write_all(pages) == [None] * COUNT
        self.card.calls.clear()
        return contents

    def read(self, first: int) -> list[bytes]:
        """Returns the content of each slot of an extent."""
        return [bytes(self.tiers.read(first + n) or b"") for n in range(COUNT)]

    def pairs(self, source: int, target: int) -> list[tuple[int, int]]:
        """Returns each slot of an extent with its place in another, in another order."""
        return [(source + n, target + (n + 2) % COUNT) for n in range(COUNT)]


def turned(contents: list[bytes]) -> list[bytes]:
    """Returns contents in the order that ``Rig.pairs`` gives them."""
    return contents[-2:] + contents[:-2]
