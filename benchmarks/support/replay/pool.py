"""A remote engine in a replay: pages of all hosts, with the order of expiry that we set."""

from itertools import islice
from random import Random
from typing import Final

from kvstore.core.tiers.disk_reads import Located
from kvstore.core.tiers.disk_writes import DiskWrite
from kvstore.storage.write_admission import WriteAdmission
from support.replay.slab import stored_end, wanted_pages

# As in the documented settings of Valkey.
SAMPLES: Final = 64
# The store's: a use extends a page's life once in so many seconds.
BUCKET_SECONDS: Final = 600.0
# A host asks anew after so many seconds which pages the engine still has.
FORGET_SECONDS: Final = 60.0
MILLISECONDS: Final = 1_000


class RemotePool:
    """The pages of one engine, which evicts by ``volatile-ttl`` once it has ``capacity`` of them.

    Of ``SAMPLES`` random pages the one that expires first leaves. A page expires a millisecond
    before its parent, and a used page extends the lives of all its ancestors. ``now`` is the time
    of the trace in seconds, which the replay sets.
    """

    def __init__(self, capacity: int, seed: int = 1) -> None:
        self.now = 0.0
        self.write_count = 0
        self.read_count = 0
        self._capacity = capacity
        self._random = Random(seed)
        self._expiries: dict[bytes, int] = {}
        self._parents: dict[bytes, bytes] = {}
        # All pages in any order, to draw from, and the place of each.
        self._drawn: list[bytes] = []
        self._places: dict[bytes, int] = {}

    def __contains__(self, digest: object) -> bool:
        """Returns True if the engine has a page."""
        return digest in self._expiries

    def expiry(self, digest: bytes) -> int:
        """Returns the time at which a page expires, in ms; all lives are without the same part."""
        return self._expiries[digest]

    def write(self, digest: bytes, parent: bytes, number: int) -> None:
        """Adds the page with this number in its path, and evicts another one if need be."""
        if len(self._drawn) >= self._capacity:
            self._evict()
        self._places[digest] = len(self._drawn)
        self._drawn.append(digest)
        self._parents[digest] = parent
        self._expiries[digest] = -number
        self.use(digest)
        self.write_count += 1

    def use(self, digest: bytes) -> None:
        """Extends the life of a page and those of its ancestors, once a bucket."""
        bucket = int(self.now // BUCKET_SECONDS) + 1
        step = int(BUCKET_SECONDS * MILLISECONDS)
        while (expiry := self._expiries.get(digest)) is not None:
            number = -expiry % step
            if expiry + number == bucket * step:
                break
            self._expiries[digest] = bucket * step - number
            digest = self._parents[digest]

    def _evict(self) -> None:
        drawn = self._random.choices(self._drawn, k=SAMPLES)
        digest = min(drawn, key=self._expiries.__getitem__)
        place, last = self._places.pop(digest), self._drawn.pop()
        if last != digest:
            self._drawn[place] = last
            self._places[last] = place
        del self._expiries[digest], self._parents[digest]


class HostView:
    """One host's use of a pool: its looks, reads and writes. A page store of a replay."""

    def __init__(self, pool: RemotePool, admission: WriteAdmission | None) -> None:
        """Writes pages that ``admission`` admits, none without one."""
        self.write_count = 0
        self._pool = pool
        self._admission = admission
        self._asked_at = 0.0

    def leading(self, located: Located) -> int:
        """Returns the number of consecutive pages, from the first on, that could be loaded."""
        count = 0
        for digest in located.page_digests():
            if digest not in self._pool:
                break
            count += 1
        return count

    def read(self, located: Located, count: int) -> None:
        """Extends the lives of the first ``count`` pages, which were read."""
        for digest in islice(located.page_digests(), count):
            self._pool.use(digest)
        self._pool.read_count += count

    def keep(self, keep: DiskWrite) -> int:
        """Writes a path's worthy pages. Returns the end of the pages that are all stored."""
        if self._admission is None:
            return keep.held_end
        for page in keep.pages:
            self._pool.use(keep.digests.through(page.end))
        wanted = wanted_pages(keep, self._pool, self._admission)
        numbers = {keep.digests.through(page.end): page.end for page in keep.pages}
        for digest, parent in wanted:
            self._pool.write(digest, parent, numbers[digest])
        self.write_count += len(wanted)
        return stored_end(keep, self._pool)

    def forgets(self) -> bool:
        """Returns True once in ``FORGET_SECONDS``: the engine does not tell what it evicted."""
        if self._pool.now - self._asked_at < FORGET_SECONDS:
            return False
        self._asked_at = self._pool.now
        return True
