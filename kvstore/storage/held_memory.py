"""Memory and processes that a carrier keeps for this process, so that a later one gets them."""

import os
from pathlib import Path

import structlog

from kvstore.holder.carrier import CarrierLost, CarrierRefused, DescriptorCarrier
from kvstore.holder.holder_process import new_memfd
from kvstore.storage.errors import NotEnoughMemory
from kvstore.storage.host.memfd import SEALS, HostTerms, allocate

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Parts of a carrier's names.
DATA_ENDING, PROCESS_NAMES = ".data", "process-"


class HeldMemory:
    """Memory (memfds) and processes (pidfds) that a carrier keeps by name. Thread-safe.

    Without a carrier this process makes all memory, which ends with the last process that has it.
    With one, a method returns once the carrier has acknowledged. If the carrier is lost, this
    process goes on alone, and what the carrier lacks is ``behind`` until its ``restore``.

    A stopped carrier is lost after some seconds, so no caller holds a lock. Bounds of memory that
    is made here are read below ``root``.
    """

    def __init__(self, carrier: DescriptorCarrier | None = None, root: Path = Path("/")) -> None:
        self._carrier = carrier
        self._terms = HostTerms(root)

    @property
    def outlives(self) -> bool:
        """True if the memory outlives this process."""
        return self._carrier is not None

    @property
    def paid_elsewhere(self) -> bool:
        """True if the carrier's memory limit counts what ``make`` returns, and not this one's."""
        return self._carrier is not None and self._carrier.pays

    def make(self, name: str, size_bytes: int) -> int:
        """Returns the descriptor of a new sealed memfd of zeros with all its pages.

        The carrier makes it. This process does if no carrier exists or it is lost. Raises
        :class:`NotEnoughMemory`, also if the carrier refuses.
        """
        if self._carrier is not None:
            try:
                return self._carrier.make(name, size_bytes)
            except CarrierLost:
                log.info("memory_made_without_carrier", name=name, size_bytes=size_bytes)
            except CarrierRefused as refused:
                raise _refusal(refused, size_bytes) from refused
        return self._make_here(name, size_bytes)

    def keep(self, name: str, descriptor: int) -> None:
        """Deposits a sealed memfd or a pidfd that was made here.

        The caller keeps the descriptor open until it forgets the name. Raises
        :class:`NotEnoughMemory` if the carrier refuses, for example because it has too many.
        """
        if self._carrier is None:
            return
        try:
            self._carrier.put({name: descriptor})
        except CarrierRefused as refused:
            raise _refusal(refused, os.fstat(descriptor).st_size) from refused

    def forget(self, *names: str) -> None:
        """Ends deposits, so that the caller may close the descriptors. Raises nothing."""
        if self._carrier is None:
            return
        try:
            self._carrier.drop(names)
        except CarrierRefused as refused:
            # The next owner drops what its journal does not name.
            log.warning("deposits_not_dropped", names=names, why=str(refused))

    def _make_here(self, name: str, size_bytes: int) -> int:
        self._terms.require(size_bytes)
        try:
            descriptor = new_memfd(name, size_bytes, SEALS)
            try:
                allocate(descriptor, 0, size_bytes)
                self.keep(name, descriptor)
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise self._terms.refusal(size_bytes, error) from error
        return descriptor


def data_name(extent_id: int) -> str:
    """Returns a carrier's name of an extent's memory."""
    return f"extent-{extent_id}{DATA_ENDING}"


def table_name(extent_id: int) -> str:
    """Returns a carrier's name of an extent's generation table."""
    return f"extent-{extent_id}.generations"


def process_name(process_id: int) -> str:
    """Returns a carrier's name of the pidfd of a worker's process."""
    return f"{PROCESS_NAMES}{process_id}"


def _refusal(refused: CarrierRefused, size_bytes: int) -> NotEnoughMemory:
    return NotEnoughMemory(str(refused), requested_bytes=size_bytes, available_bytes=0)
