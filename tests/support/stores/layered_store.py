"""A store over two page stores in memory: one of this host, and one that hosts share."""

from collections.abc import Callable, Iterable, Sequence
from math import inf
from threading import Event, Thread
from typing import Any

from page_stores.memory_page_store import FACTS, MemoryPageStore
from xxhash import xxh3_64_intdigest

from kvstore.core.values.page_hash import page_digests
from kvstore.core.values.requests import Match, MatchOptions, ReservationRequest
from kvstore.core.values.requests import Sequence as Tokens
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.page_store import PageKey, PageRead, PageStore, Presence, ReadAnswer
from kvstore.storage.write_admission import FirstTouch
from stores.store_world import PAGE_TOKENS, ManualClock, World, make_world, sequence_of

SHARED = FACTS._replace(shared=True, loses_silently=True)
LIMIT = 30.0
# Seconds after which every page counts as old.
LONG = 100.0


class FarPageStore(MemoryPageStore):
    """A page store of other hosts too, which hangs, lies and drips as a test says.

    ``looks`` are the deadlines of looks, and ``reads`` the numbers of pages of reads.
    """

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401  # those of the memory's
        super().__init__(facts=SHARED, queue_bytes=1 << 20, **settings)
        self.looks: list[float] = []
        self.reads: list[int] = []
        # What happens in a look, with the deadline, before it answers.
        self.before_look: Callable[[float], None] = lambda _: None
        # True if it claims to have every page.
        self.lies = False
        # Looks and reads do not answer.
        self.hangs = False
        self._drip: Callable[[int], None] | None = None
        self.stopped = Event()
        self.threads: list[Thread] = []

    def look(self, keys: Iterable[PageKey], deadline: float) -> int:
        """Answers with what it has, or claims to have."""
        self.looks.append(deadline)
        self.before_look(deadline)
        if self.hangs:
            return 0
        return len(list(keys)) if self.lies else super().look(keys, inf)

    def there(self, keys: Sequence[PageKey]) -> list[Presence]:
        """Answers with what it has, or claims to have."""
        self.before_look(inf)
        return [Presence.STORED] * len(keys) if self.lies else super().there(keys)

    def read(
        self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None], deadline: float
    ) -> None:
        """Begins to read pages, one after the other if it drips."""
        self.reads.append(len(wanted))
        if self._drip is None:
            super().read(wanted, done, deadline)
            return
        before = self.threads[-1] if self.threads else None
        drip = self._drip

        def answer() -> None:
            if before is not None:
                before.join(LIMIT)
            drip(len(wanted))
            MemoryPageStore.read(self, wanted, done, deadline)

        self.threads.append(Thread(target=answer, daemon=True))
        self.threads[-1].start()

    def drips(self, clock: ManualClock, *, page_seconds: float, seconds: float) -> None:
        """Answers one read after the other, each page after a while; after some seconds none."""
        until = clock.now + seconds

        def drip(pages: int) -> None:
            if clock.now + pages * page_seconds > until:
                assert self.stopped.wait(LIMIT)
            clock.now += pages * page_seconds

        self._drip = drip

    def stop(self) -> None:
        """Lets all that waits go on."""
        self.stopped.set()
        for each in self.threads:
            each.join(LIMIT)
        self.let_go()


class LayeredStore:
    """A store with a worker. Each path has a number, and each page its own bytes."""

    def __init__(
        self,
        *,
        slots: int = 64,
        extent_slots: int | None = None,
        has_near: bool = True,
        shared: PageStore | None = None,
        **settings: Any,  # noqa: ANN401  # those of a world
    ) -> None:
        """Makes a store; ``shared`` takes the place of ``far``."""
        self.near = MemoryPageStore(queue_bytes=1 << 20)
        self.far = FarPageStore()
        far = self.far if shared is None else shared
        tiers = {"remote_tier": SlowTier(far, number=int(has_near), admission=FirstTouch())}
        if has_near:
            tiers["slow_tier"] = SlowTier(self.near, admission=FirstTouch())
        self.world: World = make_world(
            slots=slots, extent_slots=extent_slots or slots, **tiers, **settings
        )  # type: ignore[arg-type]
        self.store = self.world.store
        self.loader = self.store.tier3.loader
        self.caller = self.world.worker()
        self.namespace_id = self.world.open_namespace(self.caller)
        self.namespace = self.world.cache.namespaces[self.namespace_id]
        self.digest = self.namespace.digest
        self.slots = slots
        self.ids = iter(range(1, 1 << 30))
        self.grow_old()

    def grow_old(self) -> None:
        """Passes so much time that no use of a page counts as recent."""
        for _ in range(2):
            self.world.clock.now += LONG
            self.loader.note_time()

    def close(self) -> None:
        """Ends all; nothing is under way by then."""
        self.far.stop()
        cache = self.world.cache
        self.world.check()
        assert not cache.disk_reads
        assert not cache.group_reads
        self.world.close()

    def sequence(self, pages: int, number: int = 0) -> Tokens:
        """Returns a path of so many pages and one more token."""
        return sequence_of(pages, salt=100_000 * number)

    def content(self, page: int, number: int = 0) -> bytes:
        """Returns the bytes of a page of a path."""
        half = self.world.layout.page_bytes // 2
        return page.to_bytes(half, "little") + number.to_bytes(half, "little")

    def publish(self, pages: int, number: int = 0) -> None:
        """Computes a path."""
        reservation_id = next(self.ids)
        request = ReservationRequest(reservation_id, 0, pages)
        [grant] = self.store.reserve(self.caller, self.namespace_id, [request])
        slots = [run.extent_id << 32 | index for run in grant.runs for index in run.indexes]
        contents = [self.content(each, number) for each in range(pages)]
        rows = zip(slots, map(memoryview, contents), strict=True)
        assert self.world.arenas.write_all(rows) == [None] * pages
        sums = [xxh3_64_intdigest(each) for each in contents]
        whole = Tokens(self.sequence(pages, number).tokens[:-4])
        self.store.insert(self.caller, reservation_id, whole, checksums=sums)
        self.store.abort(self.caller, [reservation_id])

    def keep(self) -> None:
        """Writes what was touched to both page stores."""
        for keeper in self.store.tier3.keepers:
            keeper.step()

    def evict(self) -> None:
        """Evicts everything that nobody holds."""
        reservation_id = next(self.ids)
        free = self.namespace.arena.free_count + self.cached
        request = ReservationRequest(reservation_id, 0, free)
        self.store.reserve(self.caller, self.namespace_id, [request])
        self.store.abort(self.caller, [reservation_id])

    @property
    def cached(self) -> int:
        """The number of cached pages."""
        return self.namespace.index.page_count

    def spread(self, pages: int, near: int, number: int = 0) -> None:
        """Puts a path's first pages into the near page store, and all of them into the far one."""
        self.publish(pages, number)
        self.keep()
        keys = self.keys(pages, number)
        assert set(keys) <= set(self.far.medium.pages)
        for key in keys[near:]:
            self.near.evict(key)
        self.evict()

    def keys(self, pages: int, number: int = 0) -> list[PageKey]:
        """Returns the keys of a path's pages."""
        tokens = self.sequence(pages, number).tokens[:-4]
        digests = page_digests(self.digest, tokens, self.namespace.index.width)
        return [PageKey(self.digest, each) for each in digests]

    def match(
        self, pages: int, number: int = 0, *, remaining: float | None = LIMIT, speed: int = 0
    ) -> Match:
        """Matches a path, compares all bytes, and releases it."""
        pin_id = next(self.ids)
        options = MatchOptions(pin_id, prefill_tokens_per_second=speed)
        asked = self.namespace_id, self.sequence(pages, number)
        found = self.store.match(self.caller, *asked, options, remaining)
        slots = [run.extent_id << 32 | index for run in found.runs for index in run.indexes]
        for page, slot in enumerate(slots):
            assert self.world.arenas.read(slot) == self.content(page, number), "a wrong page"
        self.store.release(self.caller, [pin_id])
        self.world.check()
        return found

    def page_count(self, match: Match) -> int:
        """Returns the number of pages that a match handed out."""
        return match.matched_token_count // PAGE_TOKENS
