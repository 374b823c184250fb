"""Worlds of the core with a tier 3, which is a set of digests here."""

from itertools import count

from core.core_builders import NAMESPACE_ID, CoreWorld, Worker
from kvstore.core.pool.disk_state import RemovedPrefix
from kvstore.core.pool.tier_policy import TierPolicy
from kvstore.core.tiers.disk_reads import DiskRead, Located
from kvstore.core.tiers.disk_writes import DiskWrite


class DiskWorld(CoreWorld):
    """A world whose pages may go to a disk; ``disk`` has each page's digest and its parent's."""

    def __init__(
        self, *, slots: int = 8, lower_slots: int = 0, page_stores: int = 1, **policy: object
    ) -> None:
        chosen = TierPolicy(**policy) if lower_slots else None  # type: ignore[arg-type]
        super().__init__(
            slots=slots,
            lower_slots=lower_slots,
            tier_policy=chosen,
            page_stores=page_stores,
            divides_by_token=True,
        )
        assert self.cache.state.disk is not None
        self.disk_state = self.cache.state.disk
        self.disk: dict[bytes, bytes] = {}
        self._evictions = count(500_000)

    def write(self, planned: DiskWrite, end: int | None = None) -> int:
        """Writes the pages of a disk write through ``end``, or all; returns through where."""
        end = planned.held_end if end is None else end
        for page in planned.pages:
            if page.end <= end:
                digests = planned.digests
                self.disk[digests.through(page.end)] = digests.through(page.end - 1)
        return end

    def write_touched(self, most: int = 100) -> int:
        """Writes whatever was touched; returns how many pages that is."""
        writes = self.cache.plan_writes(most)
        self.laws.check()
        self.cache.finish_writes(writes, [self.write(each) for each in writes])
        self.laws.check()
        return sum(len(each.pages) for each in writes)

    def locate(self, letters: str, worker: Worker | None = None) -> Located:
        """Locates what could be read of a sequence."""
        worker = worker or self.worker
        return self.cache.locate(worker.caller, NAMESPACE_ID, worker.sequence(letters))

    def begin(
        self, letters: str, located: Located | None = None, count: int = 100
    ) -> DiskRead | None:
        """Begins to read what is on the disk after what is cached."""
        located = located or self.locate(letters)
        worker = self.worker
        there = [digest in self.disk for digest in located.page_digests()]
        count = min(count, [*there, False].index(False))
        sequence = worker.sequence(letters)
        read = self.cache.begin_read(worker.caller, NAMESPACE_ID, sequence, count, located)
        self.laws.check()
        return read

    def read(self, letters: str) -> int:
        """Reads what is on the disk of a sequence; returns how many pages were published."""
        read = self.begin(letters)
        return 0 if read is None else self.finish(read)

    def finish(self, read: DiskRead, good: int = 100) -> int:
        """Finishes a read, its first pages read well; returns how many were published."""
        published = self.cache.finish_read(read, good)
        self.laws.check()
        return published

    def evict(self) -> None:
        """Evicts everything that nobody holds from tier 1, as a restart would."""
        reservation_id = next(self._evictions)
        cached = self.states().get("CACHED", 0)
        self.worker.reserve(reservation_id, self.arena.free_count + cached)
        self.worker.abort(reservation_id)
        self.laws.check()

    def tell(self) -> list[RemovedPrefix]:
        """Tell the disk what it must not have any more."""
        removed = self.cache.take_removed()
        for each in removed:
            gone = {each.page_digest} if each.page_digest else set(self.disk)
            while gone:
                for digest in gone:
                    self.disk.pop(digest, None)
                gone = {digest for digest, parent in self.disk.items() if parent in gone}
        self.cache.finish_removed(removed)
        return removed
