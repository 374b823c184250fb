"""A carrier keeps a server's descriptors, and gives them to the server's next process."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, Protocol

from kvstore.holder.holder_process import DescriptorIdentity, Former


class CarrierFailed(Exception):
    """The base of a carrier's errors."""


class CarrierLost(CarrierFailed):
    """The carrier does not answer. The caller goes on without it, and tries again later."""


class CarrierRefused(CarrierFailed):
    """The carrier refuses a request; the message says why. Nothing was changed."""


class CarrierOwned(CarrierRefused):
    """Another process owns the descriptors: the caller must not write to their memory."""


class CarrierFull(CarrierRefused):
    """The carrier lacks memory, or may not have so many descriptors."""


class CarriedDescriptor(NamedTuple):
    """A descriptor that the carrier gave out, which belongs to the caller, and its identity.

    The carrier or this process compared the two.
    """

    descriptor: int
    identity: DescriptorIdentity


class DescriptorCarrier(Protocol):
    """Memory (sealed memfds) and processes (pidfds) by name, which outlive the server.

    A name has 1 to 64 letters, digits, dots, dashes and underscores, and belongs to one descriptor.
    All methods are thread-safe. Each raises :class:`CarrierLost` or :class:`CarrierRefused`
    except where it says otherwise.
    """

    @property
    def behind(self) -> int:
        """The number of descriptors that the carrier should have, and has not acknowledged."""
        ...

    @property
    def pays(self) -> bool:
        """True if the memory limit of another process counts what ``make`` returns."""
        ...

    def own(self, instance: int, *, wait_seconds: float = 0.0) -> Former:
        """Becomes the owner, once the former one is dead or has yielded.

        Waits for that. ``instance`` is this start's number, which the next owner learns. Raises
        :class:`CarrierOwned` if the former owner still owns after ``wait_seconds``. After
        :class:`CarrierLost`, deposits are ``behind`` until ``restore`` makes this process the owner
        of a carrier, which then drops what others left there.
        """
        ...

    def descriptors(self) -> dict[str, CarriedDescriptor]:
        """Returns a new descriptor for each name that the carrier has."""
        ...

    def make(self, name: str, size_bytes: int) -> int:
        """Returns the descriptor of a new sealed memfd of zeros with all its pages.

        Raises :class:`CarrierFull` without enough memory.
        """
        ...

    def put(self, descriptors: Mapping[str, int]) -> bool:
        """Deposits copies of descriptors, all or none; returns once the carrier has them.

        The caller keeps each one open until it drops the name, for another carrier may need it.
        Returns False if the carrier is lost: they are ``behind`` then, until ``restore``.
        """
        ...

    def drop(self, names: Iterable[str]) -> bool:
        """Ends deposits, so the caller may close its descriptors. Returns the same as ``put``."""
        ...

    def is_lost(self) -> bool:
        """Returns whether the carrier is known to be lost, so that ``restore`` has work."""
        ...

    def restore(self) -> bool:
        """Finds or starts a carrier, owns it again, and deposits all that is behind.

        Returns whether nothing is behind any more. Raises :class:`CarrierRefused`.
        """
        ...

    def give_up(self, sequence: int) -> None:
        """Ends this process's ownership, and gives the next owner a number. Memory stays."""
        ...

    def end(self) -> None:
        """Ends all deposits for good, so that the memory is freed with the server."""
        ...

    def close(self) -> None:
        """Ends the connection. Ownership ends with the process."""
        ...
