"""Copies of whole slots, many at once, wherever either end of each is."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol, TypeAlias

import numpy as np

from kvstore.storage.errors import CudaFailed, SlotGone

# Why a slot was not copied; None where it was.
Outcome: TypeAlias = CudaFailed | SlotGone | None


class DeviceCopy(NamedTuple):
    """``content.nbytes`` bytes at a device's address, and as many of the host's.

    ``inwards`` is from the host to the device; else ``content`` can be written.
    """

    address: int
    content: memoryview
    inwards: bool


class DeviceCopier(Protocol):
    """Carries out copies to and from one device."""

    def begin_all(self, copies: Items[DeviceCopy]) -> Callable[[], list[CudaFailed | None]]:
        """Begins copies; returns what waits for them, and says of each why it was not done."""
        ...


class DeviceBytes(NamedTuple):
    """A slot's bytes on a device."""

    copier: DeviceCopier
    address: int


# Where a slot's bytes are: in this process's memory, writable, or on a device.
SlotBytes: TypeAlias = memoryview | DeviceBytes


# Waits for copies that were begun; when it returns or raises, none of them is under way.
Ending: TypeAlias = Callable[[], list[Outcome]]


def copy_all(pairs: Iterable[tuple[SlotBytes | None, SlotBytes | None]]) -> list[Outcome]:
    """Copies each source, the first of a pair, to its target, and says of each why it was not.

    All that ``begin_all`` says holds. No copy is under way when it returns or raises.
    """
    return begin_all(pairs)()


def begin_all(pairs: Iterable[tuple[SlotBytes | None, SlotBytes | None]]) -> Ending:
    """Begins to copy each source to its target; returns what waits until that is done.

    Both have the same size, and nobody else writes either meanwhile. One end of each
    pair is this process's memory, else ``TypeError``; where that or anything else is
    raised, nothing is under way. Copies within the host are done when this returns, and let
    other threads of Python go on meanwhile: numpy does where there are more than 500
    bytes.
    """
    outcomes: list[Outcome] = []
    begun: dict[DeviceCopier, dict[int, DeviceCopy]] = {}
    for number, (source, target) in enumerate(pairs):
        outcomes.append(None)
        if source is None or target is None:
            outcomes[number] = SlotGone("the slot's extent is there no more")
        elif isinstance(target, DeviceBytes):
            if isinstance(source, DeviceBytes):
                raise TypeError("both are on a device")
            copy = DeviceCopy(target.address, source, inwards=True)
            begun.setdefault(target.copier, {})[number] = copy
        elif isinstance(source, DeviceBytes):
            copy = DeviceCopy(source.address, target, inwards=False)
            begun.setdefault(source.copier, {})[number] = copy
        else:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
    endings = [
        (copies, copier.begin_all(list(copies.values()))) for copier, copies in begun.items()
    ]

    def end() -> list[Outcome]:
        for copies, ending in endings:
            for number, failure in zip(copies, ending(), strict=True):
                outcomes[number] = failure
        return outcomes

    return end
