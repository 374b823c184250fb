"""Disk reads: pages of tier 3 that a match can use, loaded to tier 1 before the answer.

They are chosen under the store's mutex, read outside it, and published under it.
"""

import mmap
from collections.abc import Callable
from collections.abc import Sequence as Items
from contextlib import suppress
from functools import partial
from itertools import takewhile
from math import inf
from threading import BoundedSemaphore, Event, Lock
from typing import NamedTuple

import structlog

from kvstore import tracing
from kvstore.core import Caller, MatchOptions, PrefixCache, Sequence
from kvstore.core.pool.arena import Arena
from kvstore.core.tiers.disk_reads import DiskRead
from kvstore.core.tiers.group_reads import GroupRead
from kvstore.core.tiers.load_or_recompute import LoadDecision, Wanted
from kvstore.errors import KVStoreError
from kvstore.service.clock import Clock
from kvstore.service.log_budget import LogBudget
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.errors import CudaFailed
from kvstore.storage.memory_tiers import Tiers
from kvstore.storage.page_store import PageKey, PageRead, PageStore, ReadAnswer

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Calls that may wait for loads at a time. Each occupies a thread that other calls need.
MOST_WAITING = 4
# The fraction of the time to a call's deadline that is left for the match itself.
RESERVE = 0.2


class _Target(NamedTuple):
    """The destination of a page: its slot, or memory from which it is copied to its slot."""

    slot: int
    view: memoryview
    staged: bool


class _Asked(NamedTuple):
    """A match, as the methods of the core take it."""

    caller: Caller
    namespace_id: bytes
    sequence: Sequence
    options: MatchOptions


class _Plan(NamedTuple):
    """A possible load of ``page_count`` pages.

    ``wanted`` says what it costs and saves. ``begin`` begins or joins it under the store's mutex.
    """

    page_count: int
    wanted: Wanted
    begin: Callable[[], DiskRead | GroupRead | None]


class DiskPart(NamedTuple):
    """The tokens of a sequence that only tier 3 had: from ``start`` to ``end``, in whole pages."""

    start: int = 0
    end: int = 0


NO_PART = DiskPart()


class Loader:
    """Loads pages for matches. Thread-safe.

    ``mutex`` is the store's; it guards ``cache`` and is never held while pages are searched, read
    or copied.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        memory: Tiers,
        tiers: Items[SlowTier],
        clock: Clock,
        took: Callable[[Arena], None],
    ) -> None:
        """Makes a loader; ``took`` is called under the mutex with arenas that gave slots."""
        self.declined_count = 0
        self._took = took
        self._cache = cache
        self._mutex = mutex
        self._memory = memory
        present = (each for each in tiers if each.page_store is not None)
        self._tier = next(present, tiers[0])
        self._clock = clock
        self._places = BoundedSemaphore(MOST_WAITING)
        # Set when a load ends, under the store's mutex.
        self._ends: dict[DiskRead | GroupRead, Event] = {}
        self._deciding = Lock()
        self._decision = LoadDecision()
        self._writing = Lock()
        self._lines = LogBudget(clock)

    @property
    def bandwidth(self) -> float:
        """The recent bandwidth of tier 3 in bytes a second; 0 before the first load."""
        with self._deciding:
            return self._decision.bandwidth or 0.0

    def load(
        self,
        caller: Caller,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions,
        remaining: float | None,
    ) -> DiskPart:
        """Loads a sequence's pages that only tier 3 has to tier 1, if that is worth it.

        Returns the tokens that it has beyond the index, loaded or not. A call with ``remaining``
        seconds to its deadline waits for most of them; a longer load finishes without it. Errors
        in the call are left to the match, which may have been answered before.

        For a match with KV cache groups it then loads the pages that their windows lack at the end
        of the path, if tier 3 has all of them.
        """
        page_store = self._tier.usable()
        if page_store is None or page_store.is_empty:
            return NO_PART
        part = NO_PART
        due = inf if remaining is None else self._clock() + remaining * (1 - RESERVE)
        asked = _Asked(caller, namespace_id, sequence, options)
        # The errors of one step leave what the step before it found.
        with suppress(KVStoreError):
            part = self._load(page_store, asked, due)
            if options.groups:
                self._load_groups(page_store, asked, due)
        return part

    def _load(self, page_store: PageStore, asked: _Asked, due: float) -> DiskPart:
        """Loads the pages of a path until ``due``; returns the tokens that only tier 3 had."""
        with self._mutex:
            located = self._cache.locate(*asked)
            layout = self._cache.namespaces[asked.namespace_id].layout
        count = self._tier.look(located.namespace_digest, located.page_names(), due)
        if not count:
            return NO_PART
        most = min(count, max(page_store.reading_room // layout.page_bytes, 1))
        wanted = Wanted(count * layout.page_bytes, count * layout.page_tokens)
        begin = partial(self._cache.begin_read, *asked[:3], most, located, self._tier.number)
        self._bring(page_store, _Plan(most, wanted, begin), asked.options, due)
        start = located.end * layout.page_tokens
        return DiskPart(start, start + count * layout.page_tokens)

    def _load_groups(self, page_store: PageStore, asked: _Asked, due: float) -> None:
        """Loads the pages of groups that a match lacks at the end of its path, all or none.

        Looks again after it waited for a load of another caller, which may have brought only some
        of the pages.
        """
        is_joined = True
        while is_joined:
            with self._mutex:
                located = self._cache.locate_groups(*asked, page_store.reading_room)
                layout = self._cache.namespaces[asked.namespace_id].layout
            count = len(located.pages)
            there = self._tier.look(located.namespace_digest, located.page_names(), due)
            if not count or there < count:
                return
            number = self._tier.number
            saved = (located.end - located.match_end) * layout.page_tokens
            wanted = Wanted(count * layout.page_bytes, saved)
            begin = partial(self._cache.begin_group_read, *asked[:3], located, number)
            is_joined = self._bring(page_store, _Plan(count, wanted, begin), asked.options, due)

    def _bring(self, page_store: PageStore, plan: _Plan, options: MatchOptions, due: float) -> bool:
        """Begins a load, if it is worth it, or joins one under way, and waits for it until ``due``.

        Returns True if it joined a load, which has ended.
        """
        speed = options.prefill_tokens_per_second
        if not self._worth_loading(page_store, plan.wanted, speed):
            return False
        if not self._places.acquire(blocking=False):
            return False
        try:
            with tracing.span("load", pages=plan.page_count):
                with self._mutex:
                    load = plan.begin()
                    if load is None:
                        return False
                    is_joined = load in self._ends
                    if not is_joined:
                        self._took(load.namespace.arena)
                        self._ends[load] = Event()
                    ended = self._ends[load]
                if not is_joined:
                    self._read(page_store, load)
                remaining = None if due == inf else max(due - self._clock(), 0.0)
                return ended.wait(remaining) and is_joined
        finally:
            self._places.release()

    def _worth_loading(self, page_store: PageStore, wanted: Wanted, speed: int) -> bool:
        with self._deciding:
            worth = self._decision.worth_loading(
                wanted,
                prefill_tokens_per_second=speed,
                queued_bytes=page_store.reading_bytes,
                now=self._clock(),
            )
            self.declined_count += not worth
        return worth

    def _read(self, page_store: PageStore, load: DiskRead | GroupRead) -> None:
        """Begins to read the pages of a load, which is finished later."""
        try:
            targets = self._targets(load)
            wanted = [
                PageRead(PageKey(load.namespace_digest, page.digest, page.segment), [target.view])
                for page, target in zip(load.pages, targets, strict=True)
            ]
        except BaseException as error:
            self._finish(load, ())
            if not isinstance(error, OSError):
                raise
            self._tell(error)
            return
        # A load outlives its caller, so the page store limits its time by itself.
        page_store.read(wanted, lambda answer: self._take(load, targets, answer), inf)

    def _targets(self, load: DiskRead | GroupRead) -> list[_Target]:
        """Returns the destinations of a load's pages."""
        size = load.namespace.layout.page_bytes
        views = [self._memory.view(slot) for slot in load.targets]
        left = sum(view is None for view in views) * size
        # Mapped memory is aligned for O_DIRECT. The number of mappings of a process is limited.
        staging = memoryview(mmap.mmap(-1, left) if left else b"")
        targets: list[_Target] = []
        for slot, view in zip(load.targets, views, strict=True):
            if view is None:
                left -= size
                targets.append(_Target(slot, staging[left : left + size], staged=True))
            else:
                targets.append(_Target(slot, view, staged=False))
        return targets

    def _take(
        self, load: DiskRead | GroupRead, targets: Items[_Target], answer: ReadAnswer
    ) -> None:
        """Publishes the pages that were read, on a thread of the page store."""
        checksums: list[int] = []
        try:
            with self._deciding:
                self._decision.observe(answer.byte_count, answer.seconds, self._clock())
            whole = list(takewhile(lambda each: each is not None, answer.checksums))
            placed = self._place(targets[: len(whole)])
            checksums = [each for each in whole[:placed] if each is not None]
        finally:
            self._finish(load, checksums)

    def _place(self, targets: Items[_Target]) -> int:
        """Copies read pages to their slots; returns how many succeeded before the first failure."""
        staged = [each for each in targets if each.staged]
        outcomes = iter(self._memory.write_all((each.slot, each.view) for each in staged))
        for number, each in enumerate(targets):
            failure = next(outcomes) if each.staged else None
            if failure is not None:
                if not (isinstance(failure, CudaFailed) and self._memory.device.is_lost(failure)):
                    self._tell(failure)
                return number
        return len(targets)

    def _tell(self, failure: Exception) -> None:
        with self._writing:
            self._lines.write(log.warning, "pages_not_loaded", why=str(failure))

    def _finish(self, load: DiskRead | GroupRead, checksums: Items[int]) -> None:
        """Publishes a load's first pages, and wakes the callers that wait for them."""
        with self._mutex:
            if isinstance(load, GroupRead):
                self._cache.finish_group_read(load, len(checksums), checksums)
            else:
                self._cache.finish_read(load, len(checksums), checksums)
            ended = self._ends.pop(load)
        ended.set()
