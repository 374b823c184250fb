"""A store with a disk that a worker fills, and its successors over the same file."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path
from threading import Event, Thread

from kvstore.core.values.requests import Match, MatchOptions
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.arenas import Arenas
from kvstore.storage.page_store import PageRead, ReadAnswer
from kvstore.storage.slab.layout import ALIGNMENT
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.slab import Slab, SlabConfig
from kvstore.storage.write_admission import FirstTouch, WriteAdmission
from stores.store_world import PAGE_BYTES, World, make_world
from stores.tiered_store import PAGES, Tiered

SEGMENT_BYTES = 16 * ALIGNMENT
LIMIT = 30.0
EVERYTHING = FirstTouch()


class GatedSlab(Slab):
    """A slab whose reads wait until they are let go, while ``closed``."""

    closed = False

    def read(
        self,
        wanted: Sequence[PageRead],
        done: Callable[[ReadAnswer], None],
        deadline: float = inf,
    ) -> None:
        """Keeps a read back, or read."""
        if not self.closed:
            super().read(wanted, done, deadline)
            return
        self.waiting.append((wanted, done))
        self.asked.set()

    def let_go(self) -> None:
        """Reads all that waits."""
        self.closed = False
        while self.waiting:
            super().read(*self.waiting.pop())

    def __init__(self, *settings: object) -> None:
        self.waiting: list[tuple[Sequence[PageRead], Callable[[ReadAnswer], None]]] = []
        self.asked = Event()
        super().__init__(*settings)  # type: ignore[arg-type]


class DiskStore(Tiered):
    """A store of tier 1 and a disk. Everything that is inserted is worth a write, unless told."""

    def __init__(self, world: World, tier: SlowTier) -> None:
        super().__init__(world)
        self.tier = tier

    @property
    def slab(self) -> GatedSlab:
        """The slab, which is open."""
        assert isinstance(self.tier.page_store, GatedSlab)
        return self.tier.page_store

    def memory(self) -> list[Arenas]:
        """Returns tier 1's memory, and that of tier 2 where there is one."""
        return [each for each in (self.world.arenas, self.world.lower) if each is not None]

    def write(self, number: int) -> None:
        """Publishes a sequence, and waits until the disk has what it is to have."""
        self.publish(number)
        self.settle()

    def settle(self) -> None:
        """Runs the keeper until nothing is under way, and memory grow."""
        [keeper] = self.world.store.tier3.keepers
        keeper.step()
        while self.world.cache.disk_writes:
            assert keeper.due.wait(LIMIT)
            keeper.due.clear()
            keeper.step()
        self.move()

    def on_disk(self, number: int) -> int:
        """Returns how many pages of a sequence the disk has, from the first on."""
        caller, layout = self.caller, self.world.layout
        tokens = self.sequence(number).tokens
        peeked = self.world.store.peek(caller.identity, self.namespace_id, tokens)
        return peeked.tier_3_token_count // layout.page_tokens

    def ask(self, number: int, remaining: float | None = None, speed: int = 0) -> Match:
        """Matches a sequence, with a call's deadline and prefill speed, and releases it."""
        pin_id = next(self._ids)
        store = self.world.store
        options, sequence = (
            MatchOptions(pin_id, prefill_tokens_per_second=speed),
            self.sequence(number),
        )
        match = store.match(self.caller, self.namespace_id, sequence, options, remaining)
        store.release(self.caller, [pin_id])
        return match


class DiskStores:
    """Makes stores over one file, each the successor of the one before."""

    def __init__(self, folder: Path) -> None:
        self.config = SlabConfig(
            folder / "slab",
            ALIGNMENT + 4 * SEGMENT_BYTES,
            segment_bytes=SEGMENT_BYTES,
            thread_count=2,
            queue_bytes=4 * PAGE_BYTES,
        )
        self._stack = ExitStack()

    def open(
        self,
        *,
        slots: int = 8,
        extent_slots: int = 0,
        admission: WriteAdmission = EVERYTHING,
        **settings: object,
    ) -> DiskStore:
        """Returns a store that begins with what the file has."""
        tier = SlowTier(GatedSlab(self.config, SlabClock()))
        world = make_world(
            slots=slots,
            extent_slots=extent_slots or slots,
            slow_tier=tier,
            admission=admission,
            **settings,  # type: ignore[arg-type]
        )
        self._stack.callback(world.close)
        self._stack.callback(tier.close)
        return DiskStore(world, tier)

    def close(self) -> None:
        """Ends all stores. Can be repeated."""
        self._stack.close()

    def reopen(self, store: DiskStore, **settings: object) -> DiskStore:
        """Closes a store's file, and returns its successor."""
        store.tier.close()
        return self.open(**settings)


def in_background(store: DiskStore, number: int) -> tuple[Thread, list[Match]]:
    """Match on a thread of its own; return that, and where the match will be."""
    found: list[Match] = []
    thread = Thread(target=lambda: found.append(store.ask(number)), daemon=True)
    thread.start()
    return thread, found


def page_count(match: Match) -> int:
    """Returns how many pages a match hands out."""
    return sum(len(run.indexes) for run in match.runs)


__all__ = ["PAGES", "DiskStore", "DiskStores", "GatedSlab", "in_background", "page_count"]
