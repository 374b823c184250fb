"""Mappings: the extents that processes were given and may have mapped."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from kvstore.core.journal.journal import Journal
from kvstore.core.journal.rows import MappingRow, Table


@dataclass
class Mapping:
    """The extents that one process may have mapped. ``pid`` is for people."""

    pid: int
    extent_ids: set[int] = field(default_factory=set)


class Mappings:
    """The extents that each process was given, by the process's number. Not thread-safe.

    A mapping outlives its lease, since a process may keep memory mapped after its lease ended.
    A process without extents has no entry.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, Mapping] = {}
        self._journal: Journal | None = None

    @property
    def process_ids(self) -> set[int]:
        """The processes that may have some extent mapped."""
        return set(self._by_process)

    def of(self, process_id: int) -> set[int]:
        """Returns the extents that a process may have mapped."""
        mapping = self._by_process.get(process_id)
        return set() if mapping is None else mapping.extent_ids

    def pid_of(self, process_id: int) -> int:
        """Returns the pid of a process that may have some extent mapped; raises KeyError."""
        return self._by_process[process_id].pid

    def give(self, process_id: int, pid: int, extent_ids: Iterable[int]) -> None:
        """Records that a process is given extents. Called before it is given them."""
        given = set(extent_ids)
        if given:
            self._by_process.setdefault(process_id, Mapping(pid)).extent_ids |= given
            self._write(process_id)

    def take_back(self, process_id: int, extent_ids: Iterable[int]) -> None:
        """Records that a process unmapped extents. Ignores unknown ones."""
        mapping = self._by_process.get(process_id)
        if mapping is not None:
            mapping.extent_ids.difference_update(extent_ids)
            if not mapping.extent_ids:
                del self._by_process[process_id]
            self._write(process_id)

    def forget(self, process_id: int) -> None:
        """Records that a process has nothing mapped any more."""
        if self._by_process.pop(process_id, None) is not None:
            self._write(process_id)

    def journal_to(self, journal: Journal | None) -> None:
        """Writes what changes from now on to a journal."""
        self._journal = journal

    def _write(self, process_id: int) -> None:
        if self._journal is None:
            return
        mapping = self._by_process.get(process_id)
        if mapping is None:
            self._journal.clear(Table.MAPPINGS, process_id)
        else:
            row = MappingRow(process_id, mapping.pid, tuple(sorted(mapping.extent_ids)))
            self._journal.put(Table.MAPPINGS, process_id, row)

    def pids(self, extent_id: int) -> list[int]:
        """Returns the processes that may have an extent mapped, by the ids that people know."""
        every = self._by_process.values()
        return sorted({each.pid for each in every if extent_id in each.extent_ids})
