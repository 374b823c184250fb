"""Faults put into server, holder or descriptors, to show that outlive.py sees what it is for."""

import fcntl
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import NamedTuple

from kvstore import instance_lock
from kvstore.core.journal.records import RecordKind
from kvstore.holder import holder_process
from kvstore.holder.holder_client import HolderClient
from kvstore.succession.journal.durable_journal import DurableJournal

# Records that are not written yet when the next answers leave. Slots of a reservation that is open
# at the kill stay its own, and look evicted once it ends. So most of these are of ended ones: a
# client holds five requests at most.
LATE_RECORDS = 200
# Endings of the names of an extent's two descriptors.
DATA, TABLE = ".data", ".generations"
OWN_SECONDS = 30.0


class Mutant(NamedTuple):
    """Changes of the server's and the holder's process, and names of descriptors to swap."""

    in_server: Callable[[], None] | None = None
    in_holder: Callable[[], None] | None = None
    swapped: str = ""


def swap_descriptors(folder: Path, ending: str) -> None:
    """Swaps the descriptors of two extents in a holder that nobody owns, and dies as its owner."""
    holder = HolderClient(folder)
    holder.own(time.time_ns(), wait_seconds=OWN_SECONDS)
    found = holder.descriptors()
    one, other = sorted(name for name in found if name.endswith(ending))[:2]
    holder.drop([one, other])
    holder.put({one: found[other].descriptor, other: found[one].descriptor})


def _records_late() -> None:
    """Writes the record of an insert after the answers of later calls."""
    append, late = DurableJournal.append, list[Sequence[bytes]]()

    def append_late(self: DurableJournal, *parts: bytes) -> None:
        if parts[0][0] != RecordKind.INSERT:
            append(self, *parts)
            return
        late.append([bytes(part) for part in parts])
        if len(late) > LATE_RECORDS:
            append(self, *late.pop(0))

    DurableJournal.append = append_late  # type: ignore[method-assign,assignment]


def _no_lock() -> None:
    """Starts beside another server of the folder."""
    unlocked = SimpleNamespace(flock=lambda *_: None, LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB)
    setattr(instance_lock, "fcntl", unlocked)  # noqa: B010 - mypy refuses the assignment


def _owner_may_live() -> None:
    """Grants the ownership to whoever asks. The owner's own connections keep theirs."""
    claim = holder_process.Ownership.claim

    def claim_from_the_living(
        self: holder_process.Ownership, process: holder_process.Process, instance: int
    ) -> bool:
        if self.owner is not None and not process.same_as(self.owner):
            self.owner = None
        return claim(self, process, instance)

    holder_process.Ownership.claim = claim_from_the_living  # type: ignore[method-assign]


MUTANTS: MappingProxyType[str, Mutant] = MappingProxyType(
    {
        "record-after-answer": Mutant(_records_late),
        "two-owners": Mutant(_no_lock, _owner_may_live),
        "swapped-data": Mutant(swapped=DATA),
        "swapped-tables": Mutant(swapped=TABLE),
    }
)
