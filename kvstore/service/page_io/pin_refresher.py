"""Refreshes of named pins: pinned pages stay in a page store whose pages expire."""

from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items
from threading import Lock
from typing import Final, NamedTuple

from kvstore import background
from kvstore.core import PrefixCache
from kvstore.core.leases.named_pins import NamedPin
from kvstore.core.tiers.pin_refreshes import PinSlice
from kvstore.service.clock import Clock
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.page_store import ExpiringPageStore, PageKey, PageStore, Presence

# Pages of one pin that the page store is asked for at a time. It is then another tenant's turn.
SLICE_PAGES: Final = 128
# Slices of one step. With a step each second that is 4,096 pages a second.
SLICES_A_STEP: Final = 32
# Seconds after which a pin of which pages are absent is asked for again: twice as many each time,
# until it is as often as for other pins.
FIRST_RETRY_SECONDS: Final = 1.0


class PinUse(NamedTuple):
    """Pages of named pins that were refreshed so far, and those that the page store lacked.

    ``absent_pages`` are those of the latest refresh of each pin.
    """

    refreshed_pages: int = 0
    absent_pages: int = 0


class _Refresh:
    """The refreshes of one named pin: the one under way, and the time of the next one."""

    def __init__(self, pin: NamedPin, now: float) -> None:
        self.pin = pin
        self.due = now
        self.is_queued = False
        # Pages that the last whole refresh did not find.
        self.absent_count = 0
        self._retry_seconds = FIRST_RETRY_SECONDS
        self.begin()

    def begin(self) -> None:
        """Begins with the first page."""
        self.start = self.stored_end = 0
        # The first page that is neither stored nor about to be.
        self.absent: int | None = None
        self._not_stored = 0

    def take(self, part: PinSlice, found: Items[Presence]) -> None:
        """Notes which pages of a slice the page store has."""
        for page, presence in enumerate(found, part.start):
            if presence is not Presence.STORED:
                self._not_stored += 1
            elif page == self.stored_end:
                self.stored_end += 1
            if not presence and self.absent is None:
                self.absent = page
        self.start = part.end

    def finish(self, now: float, period: float) -> None:
        """Ends a refresh of all pages. The next one comes sooner if some were not stored."""
        self.is_queued = False
        self.absent_count = self._not_stored
        if self.absent_count:
            self.due = now + min(self._retry_seconds, period)
            self._retry_seconds = min(2 * self._retry_seconds, period)
        else:
            self.due = now + period
            self._retry_seconds = FIRST_RETRY_SECONDS


class PinRefresher:
    """Asks a page store for the pages of all named pins, so that they do not expire there.

    Absent pages are offered to it again. The work of a step is bounded, and tenants take turns. So
    pins of one tenant keep no other tenant's waiting. Only ``use`` may be called by other threads.

    ``mutex`` is the store's; it guards ``cache`` and is never held while the page store is asked.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        tier: SlowTier,
        period: float,
        clock: Clock,
        offered: Callable[[], None],
    ) -> None:
        """Makes a refresher; a pin is refreshed each ``period`` seconds, as the page store says.

        ``offered`` is called under the mutex after absent pages were offered.
        """
        self._cache = cache
        self._mutex = mutex
        self._tier = tier
        self._period = period
        self._clock = clock
        self._offered = offered
        self._refreshes: dict[NamedPin, _Refresh] = {}
        # The tenant whose turn it is comes first.
        self._turns: dict[str, deque[_Refresh]] = {}
        self._refreshed_pages = 0

    def use(self) -> PinUse:
        """Returns the counts now."""
        absent = sum(each.absent_count for each in self._refreshes.values())
        return PinUse(self._refreshed_pages, absent)

    def step(self) -> None:
        """Refreshes what is due, a part of it at most. To be called about each second.

        Does nothing while the page store is away. Refreshes begin anew once it is back.
        """
        self._note_pins()
        for _ in range(SLICES_A_STEP):
            page_store = self._tier.usable()
            if page_store is None:
                self._stop()
            if page_store is None or not self._turns:
                return
            self._refresh(page_store, self._next())
            background.give_way()

    def _note_pins(self) -> None:
        """Finds new pins, forgets those that ended, and queues those that are due."""
        now = self._clock()
        with self._mutex:
            pins = self._cache.all_named_pins()
        known = self._refreshes
        self._refreshes = {pin: known.get(pin) or _Refresh(pin, now) for pin in pins}
        for pin, refresh in self._refreshes.items():
            if refresh.due <= now and not refresh.is_queued:
                refresh.is_queued = True
                refresh.begin()
                self._turns.setdefault(pin.namespace.tenant, deque()).append(refresh)

    def _stop(self) -> None:
        """Drops the refreshes under way."""
        self._turns.clear()
        for each in self._refreshes.values():
            each.is_queued = False

    def _next(self) -> _Refresh:
        """Returns the next refresh, and ends its tenant's turn."""
        tenant = next(iter(self._turns))
        self._turns[tenant] = queue = self._turns.pop(tenant)
        return queue[0]

    def _refresh(self, page_store: PageStore, refresh: _Refresh) -> None:
        """Asks the page store for the next pages of a pin."""
        with self._mutex:
            part = self._cache.plan_refresh(refresh.pin, refresh.start, SLICE_PAGES)
        if part is not None:
            namespace = refresh.pin.namespace.digest
            # With the page before it, so that the page store knows that they follow each other.
            ends = range(max(part.start, 1), part.end + 1)
            keys = [PageKey(namespace, *part.digests.name(end)) for end in ends]
            found = page_store.there(keys)[part.start > 0 :]
            refresh.take(part, found)
            self._refreshed_pages += sum(each is Presence.STORED for each in found)
            with self._mutex:
                self._cache.finish_slice(part)
                is_over = part.end >= refresh.pin.held_end
        if part is None or is_over:
            self._finish(refresh)

    def _finish(self, refresh: _Refresh) -> None:
        """Ends a refresh. Its pin may have ended meanwhile."""
        tenant = refresh.pin.namespace.tenant
        self._turns[tenant].popleft()
        if not self._turns[tenant]:
            del self._turns[tenant]
        refresh.finish(self._clock(), self._period)
        if self._tier.usable() is None:
            # A page store that fell silent says nothing of the pages.
            return
        with self._mutex:
            number = self._tier.number
            self._cache.finish_refresh(refresh.pin, refresh.stored_end, refresh.absent, number)
            self._offered()


def pin_refreshers(
    cache: PrefixCache,
    mutex: Lock,
    tiers: Items[SlowTier],
    clock: Clock,
    offered: Callable[[], None],
) -> dict[int, PinRefresher]:
    """Returns a refresher for each tier whose pages expire, by the tier's number."""
    return {
        each.number: PinRefresher(
            cache,
            mutex,
            tier=each,
            period=each.page_store.refresh_seconds,
            clock=clock,
            offered=offered,
        )
        for each in tiers
        if isinstance(each.page_store, ExpiringPageStore)
    }
