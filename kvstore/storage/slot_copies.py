"""Copies of many whole slots at once, between host memory and devices."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Items
from typing import NamedTuple, Protocol, TypeAlias

from kvstore.storage.errors import CudaFailed, SlotGone

# The reason why a slot was not copied; None if it was.
Outcome: TypeAlias = CudaFailed | SlotGone | None


class DeviceCopy(NamedTuple):
    """``content.nbytes`` bytes at a device's address, and as many in host memory.

    ``inwards`` is from the host to the device. Otherwise ``content`` must be writable.
    """

    address: int
    content: memoryview
    inwards: bool


class DeviceCopier(Protocol):
    """Carries out copies to and from one device."""

    def begin_all(self, copies: Items[DeviceCopy]) -> Callable[[], list[CudaFailed | None]]:
        """Begins copies. Returns a wait for them, which returns each one's error, or None."""
        ...


class DeviceBytes(NamedTuple):
    """A slot's bytes on a device."""

    copier: DeviceCopier
    address: int


# The place of a slot's bytes: this process's writable memory, or a device.
SlotBytes: TypeAlias = memoryview | DeviceBytes


# Waits for copies under way. When it returns or raises, none is under way.
Ending: TypeAlias = Callable[[], list[Outcome]]


def copy_all(pairs: Iterable[tuple[SlotBytes | None, SlotBytes | None]]) -> list[Outcome]:
    """Copies each pair's first slot to its second. Returns each one's error, or None.

    The rules of ``begin_all`` hold. No copy is under way when this returns or raises.
    """
    return begin_all(pairs)()


def begin_all(pairs: Iterable[tuple[SlotBytes | None, SlotBytes | None]]) -> Ending:
    """Begins to copy each source to its target. Returns a wait for the copies.

    Both have the same size, and nobody else writes either meanwhile. One end of each pair is this
    process's memory, else raises ``TypeError``. No copy is under way when this raises. Copies
    within the host are done when this returns. They release the GIL, since numpy does for more
    than 500 bytes.
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
            _copy(source, target)
    endings = [
        (copies, copier.begin_all(list(copies.values()))) for copier, copies in begun.items()
    ]

    def end() -> list[Outcome]:
        for copies, ending in endings:
            for number, failure in zip(copies, ending(), strict=True):
                outcomes[number] = failure
        return outcomes

    return end


def _copy(source: memoryview, target: memoryview) -> None:
    # A start takes an eighth less time without numpy, and many servers copy nothing.
    import numpy as np  # noqa: PLC0415

    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
