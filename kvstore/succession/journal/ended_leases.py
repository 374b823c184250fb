"""The records of leases that ended: the last one of each, and not more than a ring has room for."""

from collections.abc import Iterable
from typing import Final

from kvstore.core.journal.records import RecordKind
from kvstore.succession.journal.live_records import Payload

LEASE_ENDED: Final = int(RecordKind.LEASE_ENDED)
# The bytes of a record in the ring beside its payload, at most.
_HEADER_BYTES: Final = 32


class EndedLeases:
    """Decides which records of ended leases a journal's cleaner keeps. Not thread-safe.

    Clients choose the ids of leases, and may end unknown ones as fast as they can. So a record is
    kept only while no later one says the same, and while the later ones take less than
    ``most_bytes``. The store itself remembers the ids for as long as it runs.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._written_bytes = 0
        # By record: the bytes that were written up to the last one like it, and how many there are.
        self._known: dict[bytes, tuple[int, int]] = {}

    def note_all(self, records: Iterable[Payload]) -> None:
        """Remembers those of an earlier process's records, given in their order."""
        for record in records:
            if record[0] == LEASE_ENDED:
                self.note(bytes(record))

    def note(self, record: bytes) -> None:
        """Remembers one more record, which is the last one so far."""
        _, count = self._known.pop(record, (0, 0))
        self._written_bytes += len(record) + _HEADER_BYTES
        self._known[record] = (self._written_bytes, count + 1)

    def keeps(self, record: bytes, *, is_known: bool) -> bool:
        """Returns whether a record is kept; the cleaner drops it otherwise.

        ``is_known`` is False if the cache does not remember the lease's id any more.
        """
        written, count = self._known[record]
        if count > 1:
            self._known[record] = (written, count - 1)
            return False
        if is_known and self._written_bytes - written < self._most_bytes:
            return True
        del self._known[record]
        return False
