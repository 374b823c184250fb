"""A call that loads pages: what it asks for, until when it waits, and what it found."""

from collections.abc import Sequence as Items
from math import inf
from threading import Condition
from typing import NamedTuple

from kvstore.core import Caller, Identity, MatchOptions, Prefetched, Sequence
from kvstore.core.tiers.disk_reads import ReadSource
from kvstore.service.clock import Clock
from kvstore.service.serving_turn import let_others_serve

# The fraction of the time to a call's deadline that is left for the match itself.
RESERVE = 0.2
# The fraction of that time in which a call waits for a store that hosts share, in total. A client
# stops using the whole store after one call that is late, so three such waits have to fit.
SHARED_PART = 0.25


class DiskPart(NamedTuple):
    """The tokens of a sequence that only tier 3 had: from ``start`` to ``end``, in whole pages.

    Those from ``shared_start`` on are of a page store that hosts share; None without any.
    """

    start: int = 0
    end: int = 0
    shared_start: int | None = None

    def loaded(self, matched: int) -> int:
        """Returns how many of ``matched`` tokens only tier 3 had."""
        return max(min(self.end, matched) - self.start, 0)

    def shared_loaded(self, matched: int) -> int:
        """Returns how many of ``matched`` tokens only a page store that hosts share had."""
        if self.shared_start is None:
            return 0
        return max(min(self.end, matched) - self.shared_start, 0)


NO_PART = DiskPart()


class LoadTerms(NamedTuple):
    """The times until which a call waits: for this host's disk, and for a store that hosts share.

    Both are set as the call arrives, and hold for looks, reads and publishing together.
    """

    own: float
    shared: float

    @classmethod
    def of(cls, remaining: float | None, now: float) -> "LoadTerms":
        """Returns the terms of a call with ``remaining`` seconds to its deadline, if it has one."""
        if remaining is None:
            return cls(inf, inf)
        return cls(now + remaining * (1 - RESERVE), now + remaining * SHARED_PART)


class LoadCall:
    """A call of a match, or a prefetch, which waits for nothing. For one thread.

    A prefetch takes FREE slots alone unless it ``may_evict`` as a match may.

    ``page_tokens`` are the tokens of a page of its namespace, 0 until that was found. ``first`` is
    the end of its path's cached pages as it came, in pages. ``found_end`` is the end
    of the pages that tier 3 has, and ``shared_start`` the first of them that a shared page store
    has. ``awaited`` are the sources of the load of another call that it waited for, and a prefetch
    has ``loading_end``, the end of the pages that are being loaded.
    """

    def __init__(
        self,
        caller: Caller | Identity,
        namespace_id: bytes,
        sequence: Sequence,
        options: MatchOptions | None,
        terms: LoadTerms,
        *,
        may_evict: bool = False,
    ) -> None:
        self.caller = caller
        self.namespace_id = namespace_id
        self.sequence = sequence
        self.options = options
        self.terms = terms
        self.may_evict = may_evict
        self.page_tokens = 0
        self.first: int | None = None
        self.found_end = 0
        self.shared_start: int | None = None
        self.loading_end = 0
        self.awaited: Items[ReadSource] = ()

    @property
    def is_prefetch(self) -> bool:
        """True if it waits for no page."""
        return self.options is None

    @property
    def is_of_operator(self) -> bool:
        """True if it needs no lease, and no request waits for it."""
        return isinstance(self.caller, Identity)

    @property
    def tenant(self) -> str:
        """The tenant."""
        caller = self.caller
        return caller.tenant if isinstance(caller, Identity) else caller.identity.tenant

    @property
    def holder(self) -> tuple[str, bytes]:
        """The holder of what it prefetches: its lease, or without one its tenant."""
        return self.tenant, b"" if isinstance(self.caller, Identity) else self.caller.lease_id

    @property
    def speed(self) -> int:
        """The stated prefill speed in tokens a second, or 0."""
        return 0 if self.options is None else self.options.prefill_tokens_per_second

    def stand_at(self, end: int, shared: frozenset[int]) -> None:
        """Notes where the cached pages end now, in pages.

        Those that came since the last time are of the load that it waited for. ``shared`` are the
        page stores that hosts share.
        """
        if self.first is None:
            self.first = self.found_end = end
        for stop, number in self.awaited:
            self.found(self.found_end, min(stop, end), is_shared=number in shared)
        self.awaited = ()

    def found(self, start: int, end: int, *, is_shared: bool) -> None:
        """Notes that a page store has the pages from ``start`` through ``end``."""
        if end > start:
            if is_shared and (self.shared_start is None or start < self.shared_start):
                self.shared_start = start
            self.found_end = max(self.found_end, end)

    def part(self) -> DiskPart:
        """Returns the tokens that only tier 3 had."""
        page_tokens = self.page_tokens
        if self.first is None or self.found_end <= self.first:
            return NO_PART
        shared = None if self.shared_start is None else self.shared_start * page_tokens
        return DiskPart(self.first * page_tokens, self.found_end * page_tokens, shared)

    def prefetched(self) -> Prefetched:
        """Returns what a prefetch found, in tokens."""
        first = 0 if self.first is None else self.first
        loading = max(self.loading_end, first)
        end = max(self.found_end, loading)
        shared = 0 if self.shared_start is None else end - self.shared_start
        pages = first, loading - first, end - loading, shared
        return Prefetched(*(count * self.page_tokens for count in pages))


class LoadProgress:
    """The progress of a load, for the calls that wait for it. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._changed = Condition()
        self._is_over = False
        self._end = 0
        self._waits_for_shared = False

    def note(self, *, waits_for_shared: bool, end: int = 0) -> None:
        """Notes through which page of its path pages are published.

        The next ones may be a shared page store's.
        """
        with self._changed:
            self._end = end
            self._waits_for_shared = waits_for_shared
            self._changed.notify_all()

    def end(self) -> None:
        """Notes that the load is over."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def wait(self, terms: LoadTerms, end: float = inf) -> bool:
        """Waits until the load is over, or published the pages of its path through ``end``.

        Returns False if that takes longer than the terms allow.
        """
        let_others_serve()
        with self._changed:
            while not self._may_go_on(end):
                due = terms.shared if self._waits_for_shared else terms.own
                remaining = None if due == inf else max(due - self._clock(), 0.0)
                if not self._changed.wait(remaining):
                    return self._may_go_on(end)
        return True

    def _may_go_on(self, end: float) -> bool:
        return self._is_over or self._end >= end
