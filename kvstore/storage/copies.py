"""Copies of whole slots, many at once, wherever either end of each is."""

from collections.abc import Iterable
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

    def copy_all(self, copies: Items[DeviceCopy]) -> list[CudaFailed | None]:
        """Carry out copies and wait for them; say of each why it was not."""
        ...


class DeviceBytes(NamedTuple):
    """A slot's bytes on a device."""

    copier: DeviceCopier
    address: int


# Where a slot's bytes are: in this process's memory, writable, or on a device.
SlotBytes: TypeAlias = memoryview | DeviceBytes


def copy_all(pairs: Iterable[tuple[SlotBytes | None, SlotBytes | None]]) -> list[Outcome]:
    """Copy each source, the first of a pair, to its target, and say of each why it was not.

    Both have the same size, and nobody else writes either meanwhile. When it returns or
    raises, no copy is under way. One end of each pair is this process's memory, else
    ``TypeError``. Copies within the host let other threads of Python go on meanwhile:
    numpy does where there are more than 500 bytes.
    """
    outcomes: list[Outcome] = []
    issued: dict[DeviceCopier, dict[int, DeviceCopy]] = {}
    for number, (source, target) in enumerate(pairs):
        outcomes.append(None)
        if source is None or target is None:
            outcomes[number] = SlotGone("the slot's extent is there no more")
        elif isinstance(target, DeviceBytes):
            if isinstance(source, DeviceBytes):
                raise TypeError("both are on a device")
            copy = DeviceCopy(target.address, source, inwards=True)
            issued.setdefault(target.copier, {})[number] = copy
        elif isinstance(source, DeviceBytes):
            copy = DeviceCopy(source.address, target, inwards=False)
            issued.setdefault(source.copier, {})[number] = copy
        else:
            np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
    for copier, copies in issued.items():
        found = copier.copy_all(list(copies.values()))
        for number, failure in zip(copies, found, strict=True):
            outcomes[number] = failure
    return outcomes
