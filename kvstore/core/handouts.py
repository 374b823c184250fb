"""Which processes were given the handles of which extents, and have not said they unmapped."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass
class Handout:
    """The extents that one process may have mapped; ``pid`` is for people."""

    pid: int
    extent_ids: set[int] = field(default_factory=set)


class Handouts:
    """What each process was given, by the process's number. Not thread-safe.

    It outlives leases: a process whose lease ended may well have its memory mapped
    still. A process that has nothing any more is not in it.
    """

    def __init__(self) -> None:
        self._by_process: dict[int, Handout] = {}

    @property
    def process_ids(self) -> set[int]:
        """The processes that may have some extent mapped."""
        return set(self._by_process)

    def of(self, process_id: int) -> set[int]:
        """Return the extents that a process may have mapped."""
        handout = self._by_process.get(process_id)
        return set() if handout is None else handout.extent_ids

    def give(self, process_id: int, pid: int, extent_ids: Iterable[int]) -> None:
        """Note that a process is given extents, before it is."""
        given = set(extent_ids)
        if given:
            self._by_process.setdefault(process_id, Handout(pid)).extent_ids |= given

    def take_back(self, process_id: int, extent_ids: Iterable[int]) -> None:
        """Note that a process has extents mapped no more; unknown ones are ignored."""
        handout = self._by_process.get(process_id)
        if handout is not None:
            handout.extent_ids.difference_update(extent_ids)
            if not handout.extent_ids:
                del self._by_process[process_id]

    def forget(self, process_id: int) -> None:
        """Note that a process has nothing mapped any more."""
        self._by_process.pop(process_id, None)

    def pids(self, extent_id: int) -> list[int]:
        """Return the processes that may have an extent mapped, as people name them."""
        every = self._by_process.values()
        return sorted({each.pid for each in every if extent_id in each.extent_ids})
