"""Growth of arenas, one extent at a time, allocated outside the store's mutex."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from threading import Event, Lock

import structlog

from kvstore.core import PrefixCache, QuotaTable
from kvstore.core.pool.arena import Arena
from kvstore.core.values.slots import SlotState
from kvstore.errors import PoolExhausted
from kvstore.service.clock import Clock
from kvstore.service.event_watches import ChangePublisher
from kvstore.service.memory.fair_share import Offer, Shares
from kvstore.service.memory.retired_extents import ExtentReclaim
from kvstore.storage.arenas import Arenas
from kvstore.storage.errors import BudgetExhausted, StorageError

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# An arena gets its next extent while a quarter of one is left. Allocation and the workers' mapping
# then finish before the rest is used up.
WATERMARK = 0.25
# Seconds after which an allocation counts as hung in the kernel or the driver. Prefaulting and
# pinning 64 GiB takes ten seconds, somewhat more on a busy machine.
ALLOCATION_LIMIT = 60.0
# Seconds without another attempt after the machine refused memory.
PATIENCE = 1.0
# Seconds for which an arena counts as asking for another's memory after it last needed some, and
# seconds between two searches for a giver.
ASK_LIFETIME = 5.0
PACE = 0.5


class Growth:
    """Turns a tier's memory into slots, and slots into memory. Thread-safe.

    One allocation runs at a time. ``mutex`` is the store's; it guards ``cache`` and is never held
    while memory is allocated or freed. ``due`` is set when there is work.
    """

    def __init__(
        self,
        cache: PrefixCache,
        mutex: Lock,
        *,
        arenas: Arenas,
        announcer: ChangePublisher,
        clock: Clock,
        watermark: float = WATERMARK,
    ) -> None:
        self.due = Event()
        self._allocating_since: float | None = None
        self._cache = cache
        self._mutex = mutex
        self._arenas = arenas
        self._announcer = announcer
        self._clock = clock
        self._watermark = watermark
        # Quotas in bytes count for tier 1.
        self._quotas = cache.state.quotas if arenas.tier == 1 else QuotaTable()
        self._growing = Lock()
        self._departures = ExtentReclaim(
            cache, mutex, arenas=arenas, announcer=announcer, clock=clock
        )
        for each in self._own():
            self._departures.resume(each)
        self._wanted: dict[int, int] = {}
        # The arenas that have memory, as of the last step.
        self._tenants: set[str] = set()
        # When each arena last lacked memory that the budget could not give.
        self._asked: dict[int, float] = {}
        # The arenas for which extents retired since they last grew.
        self._promised: set[int] = set()
        self._look_again = -math.inf
        self._refused = False
        self._not_before = -math.inf
        announcer.subscribe(self.look)

    @property
    def takes_its_time(self) -> bool:
        """True if an allocation or a free is under way, and within its allowed time."""
        since = self._allocating_since
        return since is not None and self._clock() - since < ALLOCATION_LIMIT

    def begin(self, arena: Arena) -> None:
        """Gives an arena its first extent if it has none, which takes up to half a second a GiB.

        Raises :class:`PoolExhausted` if no memory is available. The store may then ask another
        tenant to give some. Called without the store's mutex.
        """
        if arena.lasting:
            return
        with self._growing:
            if arena.lasting:
                return
            try:
                self._begin(arena)
            except StorageError as error:
                # The remaining budget would show how much other tenants use.
                raise PoolExhausted(requested_bytes=error.requested_bytes) from error

    def note(self, arena: Arena, wanted: int = 0, kept: int = 0) -> None:
        """Sets ``due`` if an arena runs low. Called under the store's mutex.

        ``wanted`` is the number of slots that a failed request asked for. A request above the
        arena's largest possible size makes nothing grow. All cached pages, held or not, count as
        evictable except ``kept`` slots.
        """
        if wanted > 0:
            free = arena.free_count + self._prospect(arena)
            if wanted <= free + arena.counts[SlotState.CACHED] - kept:
                before = self._wanted.get(arena.arena_id, 0)
                self._wanted[arena.arena_id] = max(before, min(wanted, free))
        if not self._is_short(arena):
            return
        if self._runs_low(arena):
            self.due.set()
        elif self._lacks(arena):
            self._ask(arena)

    def look(self) -> None:
        """Sets ``due`` if an extent is retiring: it may be empty or unmapped by now."""
        if self._departures.under_way:
            self.due.set()

    def step(self) -> None:
        """Continues moves of memory, then adds an extent to an arena or retires one.

        Takes up to half a second a GiB if it adds one. Sets ``due`` again while another step is
        needed. A refusal is logged once and stops growth for a while; the cache continues with its
        memory.
        """
        with self._growing:
            with self._taking_its_time():
                self._departures.go_on()
            with self._mutex:
                self._tenants = {each.tenant for each in self._own() if each.lasting_bytes}
                poorest = self._poorest()
            if poorest is None:
                self._take()
                return
            try:
                self._add(poorest)
            except StorageError as error:
                self._refuse(poorest.arena_id, error)
            else:
                self.due.set()

    def _own(self) -> list[Arena]:
        """Returns the arenas of this object's tier."""
        arenas = self._cache.arenas.values()
        return [each for each in arenas if each.tier == self._arenas.tier]

    def _poorest(self) -> Arena | None:
        """Returns the arena to grow first: of those that run low, that of the poorest tenant."""
        low = [each for each in self._own() if self._runs_low(each)]
        if not low:
            if not any(self._lacks(each) for each in self._own()):
                self._wanted.clear()
            return None
        shares = self._shares()
        return min(
            (each for each in low if not self._is_promised(each)),
            key=lambda each: (shares.wealth(each.tenant, each.tenant), each.free_count),
            default=None,
        )

    def _take(self) -> None:
        """Retires one extent for an arena that asks, if some arena is to give one."""
        with self._mutex:
            wanted = [] if self._departures.hurried() else self._find_offers()
        for asker, offer in wanted:
            with self._mutex:
                survey = self._cache.survey(offer.arena.arena_id, offer.extent_ids)
            self._departures.in_parts(survey)
            if self._retire(asker, offer.arena, survey.cheapest):
                self.due.set()
                return
        self._look_again = self._clock() + PACE

    def retire(self, extent_id: int) -> None:
        """Retires an extent if it is of this tier: its pages leave, then its memory.

        Called without the store's mutex.
        """
        with self._mutex:
            owners = [each for each in self._own() if extent_id in each.lasting]
            begun = [self._departures.begin(each, extent_id) for each in owners]
        for each in begun:
            self._departures.in_parts(each)
        self.due.set()

    def _retire(self, asker: Arena, giver: Arena, extent_id: int | None) -> bool:
        """Retires an extent, unless calls made that wrong meanwhile. Returns whether it did."""
        with self._mutex:
            stays = extent_id not in giver.lasting or self._room(asker) > 0
            if extent_id is None or stays or not self._is_short(asker):
                return False
            if self._cache.has_named_pin(giver.arena_id, extent_id):
                return False
            self._promised.add(asker.arena_id)
            retirement = self._departures.begin(giver, extent_id)
        self._departures.in_parts(retirement)
        log.info(
            "extent_retiring",
            extent_id=extent_id,
            arena_id=giver.arena_id,
            tenant=giver.tenant,
            for_arena_id=asker.arena_id,
            **asdict(retirement.removed),
        )
        return True

    def _find_offers(self) -> list[tuple[Arena, Offer]]:
        """Returns the arenas that ask and lack room, each with what may give an extent for it."""
        shares = self._shares()
        found: list[tuple[Arena, Offer]] = []
        for asker in self._askers():
            if self._room(asker) > 0:
                continue
            gain = self._arenas.slots_in_extent(asker.slot_bytes) * asker.slot_bytes
            quota = asker.quota_slots
            offers = shares.offers(asker, gain, own_only=quota is not None and quota < 1)
            found += [(asker, each) for each in offers]
        return found

    def _askers(self) -> list[Arena]:
        """Returns the arenas that lack memory and asked for it lately, the first asker first."""
        oldest = self._clock() - ASK_LIFETIME
        self._asked = {key: at for key, at in self._asked.items() if at >= oldest}
        arenas = [self._cache.arenas[key] for key in self._asked if key in self._cache.arenas]
        return [each for each in arenas if self._is_short(each)]

    def _ask(self, arena: Arena) -> None:
        """Records that an arena needs memory that others have. Called under the store's mutex."""
        now = self._clock()
        self._asked[arena.arena_id] = now
        if now >= self._look_again:
            self.due.set()

    def _is_promised(self, arena: Arena) -> bool:
        """Returns whether the remaining budget is reserved for another arena.

        Extents retire for that arena. Without this check the giver would take its extent back at
        once.
        """
        promised = {each.arena_id for each in self._askers()} & self._promised
        return bool(promised) and arena.arena_id not in promised

    def _shares(self) -> Shares:
        leases = self._cache.table.leases.values()
        in_use = {arena_id for lease in leases for arena_id in lease.arenas}
        return Shares(
            self._own(),
            in_use,
            budget_bytes=self._arenas.budget_bytes,
            quotas=self._quotas,
        )

    def _runs_low(self, arena: Arena) -> bool:
        return self._room(arena) > 0 and self._clock() >= self._not_before and self._is_short(arena)

    def _lacks(self, arena: Arena) -> bool:
        return self._room(arena) < 1 and self._is_short(arena)

    def _is_short(self, arena: Arena) -> bool:
        mark = self._arenas.slots_in_extent(arena.slot_bytes) * self._watermark
        return arena.free_count < max(mark, self._wanted.get(arena.arena_id, 0), 1)

    def _room(self, arena: Arena) -> int:
        """Returns how many slots an arena may still grow by."""
        room, quota = self._arenas.room(arena.slot_bytes), arena.quota_slots
        return room if quota is None else min(room, quota)

    def _prospect(self, arena: Arena) -> int:
        """Returns how many slots an arena may grow by, counting what others have to give."""
        # The shares would need all arenas and leases, and every reservation calls this.
        share: float | None = self._quotas.of(arena.tenant).share_bytes
        if share is None:
            tenants = len(self._tenants) + (arena.tenant not in self._tenants)
            share = self._arenas.budget_bytes / tenants
        mine = self._cache.state.arenas_of.of(arena.tenant).values()
        held = sum(each.lasting_bytes for each in mine if each.tier == arena.tier)
        room, quota = max(int(share) - held, 0) // arena.slot_bytes, arena.quota_slots
        return max(self._room(arena), room if quota is None else min(room, quota))

    def _begin(self, arena: Arena) -> None:
        try:
            with self._mutex:
                promised = self._is_promised(arena)
            if promised:
                raise BudgetExhausted(
                    "the rest of the budget is promised",
                    requested_bytes=arena.slot_bytes,
                    available_bytes=0,
                )
            self._add(arena)
        except StorageError:
            with self._mutex:
                self._ask(arena)
            raise

    def _add(self, arena: Arena) -> None:
        most = arena.quota_slots
        with self._taking_its_time():
            extent = self._arenas.allocate(arena.arena_id, arena.slot_bytes, max_slots=most)
        shape, generations = extent.shape, extent.generation_table.view
        with self._mutex:
            self._cache.add_extent(
                shape.arena_id,
                shape.extent_id,
                shape.slot_count,
                generations,
                shape.arena_offset,
            )
            self._tenants.add(arena.tenant)
            self._asked.pop(shape.arena_id, None)
            self._promised.discard(shape.arena_id)
        self._refused = False
        log.info("extent_added", size_bytes=shape.size_bytes, **shape._asdict())
        self._announcer.announce()

    @contextmanager
    def _taking_its_time(self) -> Iterator[None]:
        self._allocating_since = self._clock()
        try:
            yield
        finally:
            self._allocating_since = None

    def _refuse(self, arena_id: int, error: StorageError) -> None:
        self._not_before = self._clock() + PATIENCE
        if not self._refused:
            log.warning("extent_refused", arena_id=arena_id, why=str(error))
        self._refused = True
