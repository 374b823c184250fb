"""One page store as loads use it: what it has, if it is worth its time, and its figures."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from threading import Lock
from typing import NamedTuple

from kvstore.core.index.path_hashes import PageName
from kvstore.core.tiers.load_or_recompute import LoadDecision, Wanted
from kvstore.service.clock import Clock
from kvstore.service.page_io.loads.load_places import Places
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.service.serving_turn import let_others_serve
from kvstore.storage.page_store import PageStore

# Calls that may wait for loads from a page store at a time, and calls that may ask a shared one
# what it has. There are 16 threads for gRPC and 8 for lanes.
MOST_WAITING = 4
MOST_LOOKING = 4
# Patient looks at a time, each for about a second. Matches do not wait for them.
MOST_PATIENT = 2
# A look that finds nothing sooner asked nobody, so it says nothing of the others: a local Valkey
# answers for one page in 0.08 ms.
LEAST_LOOK_SECONDS = 0.00002
# Seconds after which a patient caller's look begins no further trip, and the pages of a trip. Loads
# of the pages found begin then, and the next call asks for the others.
PATIENT_LOOK = 1.0
ASKED_AT_ONCE = 128
# Pages whose slots are taken at a time: an engine that does not keep its word costs so many.
RUN_PAGES = 16
# Seconds in which a load from a shared page store begins its reads. What it could not read by then
# nobody waits for.
LONGEST_LOAD = 10.0


class LoadUse(NamedTuple):
    """The loads from one page store so far.

    ``late_count`` are the calls that stopped waiting, and ``declined_count`` the loads and looks
    that were not worth their time. ``seconds`` is the sum over loads. ``bandwidth`` is the recent
    one in bytes a second, 0 before the first load. ``look_seconds`` is the mean of recent looks,
    and ``late_look_count`` are those that were given up. ``saved_prefill_seconds`` is the time in
    which callers would have computed the tokens that were loaded for their matches, each at its
    stated speed. The wait for the loads is in it.
    """

    load_count: int = 0
    declined_count: int = 0
    late_count: int = 0
    byte_count: int = 0
    seconds: float = 0.0
    bandwidth: float = 0.0
    look_count: int = 0
    late_look_count: int = 0
    look_seconds: float = 0.0
    saved_prefill_seconds: float = 0.0


@dataclass
class _Counts:
    """The counts of :class:`LoadUse`."""

    loads: int = 0
    declined: int = 0
    late: int = 0
    byte_count: int = 0
    seconds: float = 0.0
    looks: int = 0
    late_looks: int = 0
    saved_prefill_seconds: float = 0.0


class LoadSource:
    """A page store of tier 3 as a source of pages. Thread-safe; only ``look`` waits for it.

    The core knows it by its ``number``. Other hosts use one that ``is_shared`` too, so it is on
    another machine.
    """

    def __init__(self, tier: SlowTier, clock: Clock) -> None:
        self.tier = tier
        self.number = tier.number
        self.is_shared = tier.is_shared
        self.waiting = Places(MOST_WAITING)
        self.looking = Places(MOST_LOOKING)
        self.patient = Places(MOST_PATIENT)
        self._clock = clock
        self._mutex = Lock()
        prior = 0.0 if tier.page_store is None else tier.page_store.facts.look_seconds
        self._decision = LoadDecision(look_seconds=prior)
        self._was_away = False
        self._counts = _Counts()

    def usable(self) -> PageStore | None:
        """Returns the page store if it may have pages now."""
        page_store = self.tier.usable()
        self._was_away = self._was_away or page_store is None
        return None if page_store is None or page_store.is_empty else page_store

    @property
    def room(self) -> int:
        """Bytes that may be read from it in addition."""
        page_store = self.tier.usable()
        return 0 if page_store is None else page_store.reading_room

    def most_pages(self, page_bytes: int) -> int:
        """Returns how many pages a load may bring: what is read in its time at the most."""
        if not self.is_shared:
            return max(self.room // page_bytes, 1)
        with self._mutex:
            bandwidth = self._decision.bandwidth
        if bandwidth is None:
            return max(self.room // page_bytes, RUN_PAGES)
        return max(int(bandwidth * LONGEST_LOAD) // page_bytes, RUN_PAGES)

    def worth_looking(self, wanted: Wanted, speed: int, patience: float) -> bool:
        """Returns True if the page store is to be asked for pages. One of this host always is.

        ``patience`` are the seconds that the caller waits for it, and ``speed`` is that of its
        prefill in tokens a second.
        """
        page_store = self.tier.usable()
        if page_store is None or not self.is_shared:
            return page_store is not None
        with self._mutex:
            if self._was_away:
                # The last looks before it was away were late, and say nothing of it now.
                self._was_away = False
                self._decision.restart()
            worth = self._decision.worth_looking(
                wanted,
                prefill_tokens_per_second=speed,
                queued_bytes=page_store.reading_bytes,
                patience=patience,
                now=self._clock(),
            )
            self._counts.declined += not worth
        return worth

    def look(self, namespace: bytes, names: Iterable[PageName], most: int, deadline: float) -> int:
        """Returns how many pages it has, up to the first that it lacks.

        A shared one is asked for the first ``most`` pages alone.
        """
        if not self.is_shared:
            return self.tier.look(namespace, names, deadline)
        let_others_serve()
        begun = self._clock()
        count = self.tier.look(namespace, islice(names, most), deadline)
        now = self._clock()
        is_late = now >= deadline
        with self._mutex:
            if count or now - begun >= LEAST_LOOK_SECONDS:
                self._decision.observe_look(now - begun, now, is_late=is_late)
            self._counts.looks += 1
            self._counts.late_looks += is_late
        return count

    def look_anyway(
        self, namespace: bytes, names: Iterable[PageName], most: int, deadline: float
    ) -> int:
        """Returns what ``look`` does, and asks a shared page store also if a miss is likely.

        Waits for a shared one for about a second at most, whatever ``deadline`` is, and counts as a
        use of its pages. For callers with time.
        """
        if not self.is_shared:
            return self.look(namespace, names, most, deadline)
        left, until, count = islice(names, most), self._clock() + PATIENT_LOOK, 0
        while batch := list(islice(left, ASKED_AT_ONCE)):
            stored = self.tier.stored(namespace, batch)
            count += stored
            if stored < len(batch) or self._clock() >= until:
                break
        return count

    def worth_loading(self, wanted: Wanted, speed: int) -> bool:
        """Returns True if pages that it has are loaded sooner than computed."""
        page_store = self.tier.usable()
        if page_store is None:
            return False
        with self._mutex:
            worth = self._decision.worth_loading(
                wanted,
                prefill_tokens_per_second=speed,
                queued_bytes=page_store.reading_bytes,
                now=self._clock(),
            )
            self._counts.declined += not worth
        return worth

    def observe(self, byte_count: int, seconds: float) -> None:
        """Records a load that ended."""
        with self._mutex:
            self._decision.observe(byte_count, seconds, self._clock())
            self._counts.loads += 1
            self._counts.byte_count += byte_count
            self._counts.seconds += seconds

    def note_late(self) -> None:
        """Records that a call stopped waiting for a load."""
        with self._mutex:
            self._counts.late += 1

    def note_saved(self, tokens: int, speed: int) -> None:
        """Records the tokens of a match that its pages gave, for a caller of a speed."""
        with self._mutex:
            self._counts.saved_prefill_seconds += tokens / speed

    def use(self) -> LoadUse:
        """Returns the figures by now."""
        with self._mutex:
            counts, decision = self._counts, self._decision
            return LoadUse(
                counts.loads,
                counts.declined,
                counts.late,
                counts.byte_count,
                counts.seconds,
                decision.bandwidth or 0.0,
                counts.looks,
                counts.late_looks,
                decision.look_seconds,
                counts.saved_prefill_seconds,
            )
