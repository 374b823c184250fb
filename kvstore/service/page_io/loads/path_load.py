"""A load of a path's pages: in runs, each of which is published as soon as those before it are."""

from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from itertools import takewhile
from math import inf
from threading import Lock
from typing import NamedTuple

from kvstore.core import PrefixCache
from kvstore.core.pool.arena import Arena
from kvstore.core.tiers.disk_reads import DiskRead, Located, ReadPage
from kvstore.core.tiers.read_slots import EvictionBound
from kvstore.service.clock import MONOTONIC, Clock
from kvstore.service.page_io.loads.load_call import LoadProgress
from kvstore.service.page_io.loads.load_source import LONGEST_LOAD, RUN_PAGES, LoadSource
from kvstore.service.page_io.read_targets import ReadTarget, ReadTargets, wanted_pages
from kvstore.storage.page_store import ReadAnswer

# Bytes of a run from a page store whose slots are all taken at once: a disk reads large runs.
LARGE_RUN = 4 << 20
# Runs that are asked for at a time while their slots are taken one by one. It begins with one, and
# doubles with each that came whole.
MOST_ASKED = 4
# Runs that have slots and are not published, whether they came or not.
MOST_UNPUBLISHED = 8


class LoadParts(NamedTuple):
    """The parts that all loads of a store share.

    ``mutex`` is the store's; it guards ``cache``. ``took`` is called under it with arenas that gave
    slots. ``sources`` are the page stores by their numbers.
    """

    cache: PrefixCache
    mutex: Lock
    clock: Clock
    targets: ReadTargets
    sources: Mapping[int, LoadSource]
    took: Callable[[Arena], None]


@dataclass
class _Run:
    """Consecutive pages of one page store that are asked for together."""

    source: LoadSource
    pages: Items[ReadPage]
    targets: Items[ReadTarget] = ()
    answer: ReadAnswer | None = None


@dataclass
class _Meter:
    """The bytes that came from a page store, and when it was asked first and answered last."""

    begun: float = field(default_factory=MONOTONIC)
    ended: float = 0.0
    byte_count: int = 0


class PathLoad:
    """Reads and publishes the pages of one :class:`DiskRead`, which it finishes. Thread-safe.

    Pages are published in the path's order, whatever order they come in. After the first page that
    did not come whole, the load ends once nobody writes into its slots any more. One thread at a
    time works on it: that of the call, or one of a page store.
    """

    def __init__(
        self,
        parts: LoadParts,
        read: DiskRead,
        bound: EvictionBound,
        ended: Callable[[], None],
        *,
        is_open: bool,
    ) -> None:
        """Makes a load of a read that has slots for its first pages.

        Slots for later ones are taken under ``bound``. An ``is_open`` one may get more pages until
        ``close``. ``ended`` is called under the store's mutex.
        """
        self.read = read
        self.progress = LoadProgress(parts.clock)
        self._parts = parts
        self._bound = bound
        self._ended = ended
        self._first = read.start
        self._page_bytes = read.namespace.layout.page_bytes
        self._until = parts.clock() + LONGEST_LOAD
        self._runs: deque[_Run] = deque()
        self._asked_end = read.start
        self._most_asked = 1
        self._meters: dict[LoadSource, _Meter] = {}
        self._is_cut = False
        self._is_over = False
        # The following are guarded by the lock.
        self._lock = Lock()
        self._is_open = is_open
        self._is_busy = False
        self._has_more = False

    def shared_end(self, located: Located) -> int:
        """Returns the end of the pages that it brings and that another call located too."""
        start, end = located.end, self.read.sources[-1].end
        pairs = zip(located.page_digests(), self.read.digests.between(start, end), strict=False)
        return start + sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))

    @property
    def page_count(self) -> int:
        """The number of pages that it was to bring, so far."""
        return self.read.sources[-1].end - self._first

    def extend(self, page_count: int, source: LoadSource) -> int:
        """Adds pages of another page store to those of the load; returns how many.

        Only for the thread that began the load, before ``close``.
        """
        with self._parts.mutex:
            if self._is_over or self._is_cut:
                return 0
            count = self._parts.cache.extend_read(self.read, page_count, source.number)
        self.note()
        self.go_on()
        return count

    def close(self) -> None:
        """Notes that no more pages are added."""
        with self._lock:
            self._is_open = False
        self.go_on()

    def note(self) -> None:
        """Tells those who wait how far it is, and which page store's pages come next."""
        with self._parts.mutex:
            source, end = self._next_source(), self.read.start
        self.progress.note(waits_for_shared=source.is_shared, end=end)

    def next_source(self) -> LoadSource:
        """Returns the page store of the next page to be published, or of the last one."""
        with self._parts.mutex:
            return self._next_source()

    def _next_source(self) -> LoadSource:
        read = self.read
        return self._parts.sources[read.number_at(min(read.start + 1, read.sources[-1].end))]

    def go_on(self) -> None:
        """Publishes the pages that came and asks for more, unless another thread does so now."""
        with self._lock:
            self._has_more = True
            if self._is_busy:
                return
            self._is_busy = True
        while True:
            with self._lock:
                if not self._has_more:
                    self._is_busy = False
                    return
                self._has_more = False
            try:
                self._step()
            except BaseException:
                self._give_up()
                raise

    def _give_up(self) -> None:
        """Ends the load after an error, as soon as nothing is under way."""
        self._is_cut = True
        with self._lock:
            self._is_busy = False
        if not self._is_over and self._may_end():
            self._finish()

    def _step(self) -> None:
        while not self._is_over:
            while self._runs and self._runs[0].answer is not None and not self._is_over:
                self._publish(self._runs.popleft())
            run = None if self._is_over else self._next_run()
            if run is None:
                break
            self._ask(run)
        if not self._is_over and self._may_end():
            self._finish()

    def _may_end(self) -> bool:
        """Returns True if nothing is under way and nothing more can come."""
        if any(each.answer is None for each in self._runs):
            return False
        if self._is_cut:
            return True
        with self._lock:
            is_open = self._is_open
        return not (is_open or self._runs) and self._asked_end == self.read.planned_end

    def _next_run(self) -> _Run | None:
        """Returns the next run to be asked for, whose pages have slots; None if it has to wait."""
        read, parts = self.read, self._parts
        with parts.mutex:
            start = self._asked_end
            if self._is_cut or start == read.planned_end:
                return None
            stop, number = next(each for each in read.sources if start < each.end)
            source = parts.sources[number]
            fitting = source.room // self._page_bytes
            if not fitting and self._asked(source):
                # It goes on once one of its own runs has left the page store.
                return None
            if start == read.end and not self._take_slots(source, stop - start):
                return None
            most = RUN_PAGES
            if not source.is_shared:
                most = max(RUN_PAGES, LARGE_RUN // self._page_bytes)
            # Where others use all of the room, one page is asked for, and is most likely refused.
            most = min(most, max(fitting, 1))
            self._asked_end = min(read.end, stop, start + most)
            return _Run(source, read.pages_between(start, self._asked_end))

    def _take_slots(self, source: LoadSource, most: int) -> bool:
        """Takes slots for another run of at most so many pages; returns False if it has to wait."""
        if not self._may_ask(source):
            return False
        if not self._parts.cache.take_run(self.read, min(RUN_PAGES, most), self._bound):
            # It goes on once other runs are published, or not at all.
            self._is_cut = not self._runs
            return False
        self._parts.took(self.read.namespace.arena)
        return True

    def _may_ask(self, source: LoadSource) -> bool:
        """Returns True if slots for another run may be taken now; ends a load that takes long."""
        if self._parts.clock() >= self._until:
            self._is_cut = True
            return False
        return self._asked(source) < self._most_asked and len(self._runs) < MOST_UNPUBLISHED

    def _asked(self, source: LoadSource) -> int:
        """Returns how many runs a page store has not answered."""
        return sum(each.answer is None and each.source is source for each in self._runs)

    def _ask(self, run: _Run) -> None:
        """Begins to read a run."""
        slots = [each.slot for each in run.pages]
        try:
            run.targets = self._parts.targets.prepare(slots, self._page_bytes)
        except OSError as error:
            self._is_cut = True
            self._parts.targets.tell(error)
            return
        self._runs.append(run)
        self._meters.setdefault(run.source, _Meter())
        wanted = wanted_pages(self.read.namespace_digest, run.pages, run.targets)
        page_store = run.source.tier.page_store
        assert page_store is not None  # it had pages
        # A load outlives its caller, so the page store limits the time of a read by itself.
        page_store.read(wanted, lambda answer: self._take(run, answer), inf)

    def _take(self, run: _Run, answer: ReadAnswer) -> None:
        """Takes the answer of a run, on a thread of the page store."""
        meter = self._meters[run.source]
        with self._lock:
            meter.byte_count += answer.byte_count
            meter.ended = MONOTONIC()
            if answer.leading == len(run.pages):
                self._most_asked = min(2 * self._most_asked, MOST_ASKED)
            run.answer = answer
        self.go_on()

    def _publish(self, run: _Run) -> None:
        """Publishes the whole pages of the first run that is not published."""
        if self._is_cut:
            return
        assert run.answer is not None  # by its caller
        whole = list(takewhile(lambda each: each is not None, run.answer.checksums))
        placed = self._parts.targets.place(run.targets[: len(whole)])
        checksums = [each for each in whole[:placed] if each is not None]
        self._is_cut = placed < len(run.pages)
        if not self._runs and self._may_end():
            self._finish(checksums)
            return
        with self._parts.mutex:
            published = self._parts.cache.publish_run(self.read, placed, checksums)
        self._is_cut = self._is_cut or not published
        self.note()

    def _finish(self, checksums: Items[int] = ()) -> None:
        """Publishes the last pages, and wakes the callers that wait."""
        with self._parts.mutex:
            self._is_over = True
            self._parts.cache.finish_read(self.read, len(checksums), checksums)
            self._ended()
        for source, meter in self._meters.items():
            source.observe(meter.byte_count, max(meter.ended - meter.begun, 0.0))
        self.progress.end()
