"""A carrier in this process: the descriptors of a store, from one of its servers to the next."""

import os
from collections.abc import Iterable, Mapping

from kvstore.holder.carrier import CarriedDescriptor
from kvstore.holder.holder_process import (
    REQUIRED_SEALS,
    DescriptorIdentity,
    Former,
    close_all,
    new_memfd,
)


class MemoryCarrier:
    """Keeps copies of descriptors by name, as a holder does, for whoever asks."""

    def __init__(self) -> None:
        self.held: dict[str, int] = {}

    @property
    def behind(self) -> int:
        """Returns 0."""
        return 0

    @property
    def pays(self) -> bool:
        """Returns False."""
        return False

    def own(self, instance: int, *, wait_seconds: float = 0.0) -> Former:
        """Makes anybody the owner."""
        del instance, wait_seconds
        return Former(0, None)

    def descriptors(self) -> dict[str, CarriedDescriptor]:
        """Returns a copy of each descriptor."""
        return {
            name: CarriedDescriptor(os.dup(each), DescriptorIdentity.of(each))
            for name, each in self.held.items()
        }

    def make(self, name: str, size_bytes: int) -> int:
        """Returns the descriptor of new memory."""
        descriptor = new_memfd(name, size_bytes, REQUIRED_SEALS)
        os.posix_fallocate(descriptor, 0, size_bytes)
        self.put({name: descriptor})
        return descriptor

    def put(self, descriptors: Mapping[str, int]) -> bool:
        """Deposits copies. Names that are held MUST be dropped first."""
        assert not descriptors.keys() & self.held.keys()
        self.held |= {name: os.dup(each) for name, each in descriptors.items()}
        return True

    def drop(self, names: Iterable[str]) -> bool:
        """Ends deposits, also of unknown names."""
        close_all(self.held.pop(each) for each in list(names) if each in self.held)
        return True

    def is_lost(self) -> bool:
        """Returns False."""
        return False

    def restore(self) -> bool:
        """Returns True."""
        return True

    def give_up(self, sequence: int) -> None:
        """Does nothing: the next one owns anyway."""

    def end(self) -> None:
        """Ends all deposits."""
        self.drop(list(self.held))

    def close(self) -> None:
        """Does nothing."""
