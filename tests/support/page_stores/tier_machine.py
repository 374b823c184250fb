"""A hypothesis state machine: a store with tier 3, whose page store fails in every way.

Tokens decide a page's bytes, so each match shows whether its pages are right. A model has the
prefixes that may be found: those written since the last removal of a page of theirs.
"""

import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from hashlib import blake2b
from pathlib import Path

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from xxhash import xxh3_64_intdigest

from kvstore.core.values.page_hash import DIGEST_BYTES, page_digests
from kvstore.core.values.requests import MatchOptions, ReservationRequest, Sequence
from kvstore.core.values.slots import SlotState
from kvstore.errors import PoolExhausted
from kvstore.service.page_io.slow_tier import SlowTier
from kvstore.storage.page_store import PageKey, PageStore, StoreFacts, StoreState
from kvstore.storage.slab.policy import SlabClock
from kvstore.storage.slab.slab import Slab, SlabConfig
from kvstore_client.testing import wait_until
from page_stores.memory_page_store import Medium, MemoryPageStore
from stores.store_world import PAGE_BYTES, PAGE_TOKENS, ManualClock, World, make_world

SLOTS = 8
LIMIT = 5.0
# A path is a few pages out of three.
PATHS = st.lists(st.integers(0, 2), min_size=1, max_size=4).map(tuple)
# Seconds that a caller waits for a page store that is held.
SOON = 0.001
QUEUE_BYTES = 4 * PAGE_BYTES
SEGMENT_BYTES = 16 * 4096
COUNTS: Counter[str] = Counter()
Path_ = tuple[int, ...]


def tokens_of(path: Path_) -> bytes:
    """Returns the tokens of a path's pages."""
    return b"".join(each.to_bytes(4, "little") * PAGE_TOKENS for each in path)


def content_of(path: Path_) -> bytes:
    """Returns the bytes of a path's last page."""
    return blake2b(tokens_of(path)).digest() * (PAGE_BYTES // 64)


def prefixes_of(path: Path_) -> list[Path_]:
    """Returns the paths to each page of a path."""
    return [path[:end] for end in range(1, len(path) + 1)]


class Admission:
    """Admits every page, and first does what a test wants to happen during a write."""

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] | None = None

    def touch(self, digest: bytes) -> bool:
        """Returns True."""
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()
        return bool(digest)


class TierMachine(RuleBasedStateMachine):
    """A worker, an operator, and restarts, over a page store of one kind."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        # An operator waits for no page store that is held.
        self.patch.setattr("kvstore.service.page_io.slow_tier.REMOVAL_PATIENCE", self.patience)
        self.may_be_found: set[Path_] = set()
        self.paths: dict[bytes, Path_] = {}
        self.ids = iter(range(1, 1 << 30))
        self.admission = Admission()
        self.start()

    # The kind of the page store.

    patience = LIMIT
    clock: ManualClock | None = None

    def open_page_store(self) -> PageStore:
        """Returns a page store over the pages of the one before."""
        raise NotImplementedError

    @property
    def is_reliable(self) -> bool:
        """True if a removal by now cannot come back."""
        return self.page_store.state is StoreState.OPEN

    @property
    def seconds(self) -> float:
        """Returns the seconds that a match may wait."""
        return LIMIT

    # The parts.

    def start(self) -> None:
        """Starts a store over the page store's pages."""
        self.page_store = self.open_page_store()
        self.tier = SlowTier(self.page_store)
        self.world: World = make_world(
            slots=SLOTS,
            extent_slots=SLOTS,
            slow_tier=self.tier,
            admission=self.admission,
            clock=self.clock,
        )
        self.caller = self.world.worker()
        self.namespace_id = self.world.open_namespace(self.caller)
        self.namespace = self.world.cache.namespaces[self.namespace_id]
        self.grow()

    def grow(self) -> None:
        """Lets memory grow, and maps it."""
        for growth in self.world.store.growths:
            growth.step()
        self.world.map_extents(self.caller)

    def stop(self) -> None:
        """Ends the store, as a server does."""
        self.tier.close()
        self.world.close()

    def settle(self) -> None:
        """Runs the keeper until nothing is under way. The page store must not be held."""
        [keeper] = self.world.store.tier3.keepers
        keeper.step()
        while self.world.cache.disk_writes:
            assert keeper.due.wait(LIMIT)
            keeper.due.clear()
            keeper.step()

    @initialize()
    def begin(self) -> None:
        """Starts with paths that only the page store has."""
        for path in ((0, 1, 2), (0, 1, 0), (2, 2)):
            self.write(path, is_kept=False)
            self.settle()
        self.restart()

    # The worker.

    @rule(path=PATHS, is_kept=st.booleans())
    def write(self, path: Path_, *, is_kept: bool) -> None:
        """Publishes a path, if there are slots, and perhaps runs the keeper."""
        reservation_id = next(self.ids)
        request = ReservationRequest(reservation_id, 0, len(path))
        try:
            [grant] = self.world.store.reserve(self.caller, self.namespace_id, [request])
        except PoolExhausted:
            return
        slots = [run.extent_id << 32 | index for run in grant.runs for index in run.indexes]
        contents = [content_of(each) for each in prefixes_of(path)]
        rows = zip(slots, map(memoryview, contents), strict=True)
        assert self.world.arenas.write_all(rows) == [None] * len(path)
        sums = [xxh3_64_intdigest(each) for each in contents]
        whole = Sequence(tokens_of(path))
        self.world.store.insert(self.caller, reservation_id, whole, checksums=sums)
        self.world.store.abort(self.caller, [reservation_id])
        self.may_be_found.update(prefixes_of(path))
        COUNTS["pages inserted"] += len(path)
        if is_kept:
            self.keep()

    # A number, since threads decide how many paths there are to draw from.
    @rule(number=st.integers(0, 255))
    def match_again(self, number: int) -> None:
        """Matches a path that was written."""
        if self.may_be_found:
            paths = sorted(self.may_be_found)
            self.match(paths[number % len(paths)])

    @rule(path=PATHS)
    def match(self, path: Path_) -> None:
        """Matches a path: each page is right, and none was removed."""
        pin_id = next(self.ids)
        asked = Sequence(tokens_of(path) + bytes(4))
        options = MatchOptions(pin_id)
        store = self.world.store
        found = store.match(self.caller, self.namespace_id, asked, options, self.seconds)
        slots = [run.extent_id << 32 | index for run in found.runs for index in run.indexes]
        for slot, prefix in zip(slots, prefixes_of(path), strict=False):
            assert self.world.arenas.read(slot) == content_of(prefix), "a wrong page is served"
            assert prefix in self.may_be_found, "a removed page returned"
        COUNTS["pages matched"] += len(slots)
        COUNTS["pages loaded"] += found.tier_3_loaded_token_count // PAGE_TOKENS
        store.release(self.caller, [pin_id])

    @rule(number=st.integers(0, 255))
    def prefetch(self, number: int) -> None:
        """Begins to load a path that was written, and evicts nothing for it."""
        if not self.may_be_found:
            return
        paths = sorted(self.may_be_found)
        path = paths[number % len(paths)]
        evicted = self.world.cache.counters.evicted_page_count
        asked = Sequence(tokens_of(path) + bytes(4))
        loader = self.world.store.tier3.loader
        found = loader.prefetch(self.caller, self.namespace_id, asked)
        assert self.world.cache.counters.evicted_page_count == evicted
        COUNTS["pages prefetched"] += found.loading_token_count // PAGE_TOKENS

    @rule()
    def keep(self) -> None:
        """Runs the keeper once."""
        for keeper in self.world.store.tier3.keepers:
            keeper.step()

    @rule(count=st.sampled_from([1, 3, SLOTS, SLOTS]))
    def evict(self, count: int) -> None:
        """Takes slots for a moment, so that cached pages leave memory."""
        reservation_id = next(self.ids)
        request = ReservationRequest(reservation_id, 0, count)
        try:
            self.world.store.reserve(self.caller, self.namespace_id, [request])
        except PoolExhausted:
            return
        self.world.store.abort(self.caller, [reservation_id])

    # The operator.

    @rule(path=PATHS, length=st.integers(0, 3))
    def remove(self, path: Path_, length: int) -> None:
        """Removes a prefix, or all. It cannot return if the page store could be told."""
        prefix = path[:length]
        reliable = self.is_reliable
        self.world.store.evict_prefix(self.caller.identity, self.namespace_id, tokens_of(prefix))
        if reliable:
            gone = {each for each in self.may_be_found if each[: len(prefix)] == prefix}
            self.may_be_found -= gone
            COUNTS["pages removed"] += len(gone)

    @rule()
    def restart(self) -> None:
        """Ends the store, and starts the next one."""
        self.stop()
        self.start()

    @rule(path=PATHS, length=st.integers(0, 3))
    def remove_during_a_write(self, path: Path_, length: int) -> None:
        """Removes a prefix after the keeper planned to write pages, and before it does."""
        self.write(path, is_kept=False)
        self.admission.meanwhile = lambda: self.remove(path, length)
        self.keep()
        self.admission.meanwhile = None

    # The laws.

    @invariant()
    def invariants_hold(self) -> None:
        """The core is whole."""
        self.grow()
        self.world.check()

    def kept(self) -> list[PageKey]:
        """Returns the pages that the core believes to be in the page store."""
        keys = []
        for node in self.namespace.index.nodes.values():
            known = node.page_hashes
            if known is not None:
                pages = known.kept_in(0, node.tree.losses)
                ends = range(DIGEST_BYTES, pages * DIGEST_BYTES + 1, DIGEST_BYTES)
                digests = [known.hashes[end - DIGEST_BYTES : end] for end in ends]
                keys += [PageKey(self.namespace.digest, each) for each in digests]
        return keys

    def teardown(self) -> None:
        """Ends all; by then nothing is under way."""
        try:
            self.check_rest()
        finally:
            self.stop()
            self.patch.undo()

    def check_rest(self) -> None:
        """Checks that no slot is lost, and that pages still come and go."""
        self.settle()
        cache = self.world.cache
        # A prefetch waits for no load.
        assert wait_until(lambda: not cache.disk_reads, LIMIT)
        assert all(each.counts[SlotState.MOVING] == 0 for each in cache.arenas.values())
        self.world.check()
        for path in sorted(self.may_be_found):
            self.match(path)


class MemoryTier(TierMachine):
    """Over a page store in memory, with every fault. Time is a number."""

    forgets_namespaces = False
    facts = StoreFacts(shared=False, loses_silently=False, look_seconds=0.0)
    patience = 0.0

    def __init__(self) -> None:
        self.medium = Medium()
        super().__init__()

    @property
    def memory(self) -> MemoryPageStore:
        """The page store."""
        assert isinstance(self.page_store, MemoryPageStore)
        return self.page_store

    def now(self) -> float:
        """Returns the time of the store, which begins after its page store."""
        return self.world.clock()

    def open_page_store(self) -> MemoryPageStore:
        """Returns a page store over the same medium."""
        return MemoryPageStore(
            self.medium,
            clock=self.now,
            facts=self.facts,
            queue_bytes=QUEUE_BYTES,
            forgets_namespaces=self.forgets_namespaces,
            read_seconds=5.0,
        )

    @property
    def seconds(self) -> float:
        """Waits for a page store that answers at once, and not for one that is held."""
        return SOON if self.memory.waiting or self.memory.held else LIMIT

    @rule()
    def recover(self) -> None:
        """Ends what keeps pages away, after all that waits was carried out."""
        self.memory.let_go()
        self.memory.come_back()
        self.keep()

    @rule(
        data=st.data(),
        meanwhile=st.sampled_from(["remove", "write", "time passes", "go away", "keep"]),
        other=PATHS,
    )
    def read_meanwhile(self, data: st.DataObject, meanwhile: str, other: Path_) -> None:
        """Reads a path that memory does not have, and changes something before it arrives."""
        self.recover()
        self.evict(SLOTS)
        if not self.may_be_found:
            return
        path = data.draw(st.sampled_from(sorted(self.may_be_found)))
        self.memory.held = True
        self.match(path)
        COUNTS["reads under way"] += len(self.world.cache.disk_reads)
        if meanwhile == "remove":
            self.remove(path, data.draw(st.integers(0, len(path))))
        elif meanwhile == "time passes":
            self.pass_time(6.0)
            self.write(other, is_kept=False)
        elif meanwhile == "write":
            self.write(path, is_kept=False)
            self.write(other, is_kept=True)
        elif meanwhile == "keep":
            self.write(other, is_kept=True)
            self.remove(other, data.draw(st.integers(0, len(other))))
        else:
            self.memory.go_away()
        self.recover()
        self.match(path)
        self.match(other)

    @rule(path=PATHS)
    def lose_a_write(self, path: Path_) -> None:
        """Uses pages again that are on their way, and then loses them on their way."""
        self.recover()
        self.memory.held = True
        self.write(path, is_kept=True)
        self.match(path)
        self.keep()
        self.memory.go_away()
        self.recover()

    @rule()
    def hold(self) -> None:
        """Makes the page store's calls wait."""
        self.memory.held = True

    @precondition(lambda self: self.memory.waiting)
    @rule(data=st.data())
    def carry_out(self, data: st.DataObject) -> None:
        """Carries out any one of them."""
        self.memory.carry_out(data.draw(st.integers(0, len(self.memory.waiting) - 1)))

    @rule(seconds=st.sampled_from([0.5, 6.0]))
    def pass_time(self, seconds: float) -> None:
        """Lets reads end by their deadlines, while their transfers go on."""
        self.world.clock.now += seconds
        self.memory.tick()

    @precondition(lambda self: self.medium.pages)
    @rule(data=st.data())
    def spoil_a_page(self, data: st.DataObject) -> None:
        """Changes a byte of a page, or gives it another's bytes."""
        keys: Items[PageKey] = sorted(self.medium.pages)
        one, two = data.draw(st.sampled_from(keys)), data.draw(st.sampled_from(keys))
        if one == two:
            self.memory.spoil(one)
        else:
            self.memory.swap(one, two)

    @precondition(lambda self: self.medium.pages)
    @rule(data=st.data())
    def lose_a_page(self, data: st.DataObject) -> None:
        """Evicts a page, and says so if it is one that does."""
        chosen = data.draw(st.sampled_from(sorted(self.medium.pages)))
        if self.facts.loses_silently:
            self.memory.lose(chosen)
        else:
            self.memory.evict(chosen)

    @rule()
    def go_away(self) -> None:
        """Makes the page store answer nothing."""
        self.memory.go_away()

    @rule()
    def come_back(self) -> None:
        """Makes it answer again."""
        self.memory.come_back()

    @invariant()
    def what_is_kept_is_there(self) -> None:
        """The core believes of no page that it is stored which is not."""
        if not self.facts.loses_silently:
            assert self.medium.pages.keys() >= set(self.kept())

    @invariant()
    def removed_pages_are_gone(self) -> None:
        """The page store has no page that was removed, and none that was never written."""
        digest = self.namespace.digest
        keys = set()
        for path in self.may_be_found:
            digests = page_digests(digest, tokens_of(path), 4 * PAGE_TOKENS)
            keys.update(PageKey(digest, each) for each in digests)
        assert self.medium.pages.keys() <= keys

    def check_rest(self) -> None:
        """Ends the faults before."""
        self.memory.come_back()
        self.memory.let_go()
        super().check_rest()


class ForgetfulMemoryTier(MemoryTier):
    """Over one that others share: it forgets whole namespaces, and loses pages without a word."""

    forgets_namespaces = True
    facts = StoreFacts(shared=True, loses_silently=True, look_seconds=0.0)


class SlabTier(TierMachine):
    """Over a slab, without faults: the same rules keep it busy, and it evicts by itself."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tier-"))
        super().__init__()

    def open_page_store(self) -> Slab:
        """Opens the file, which has room for a few pages."""
        config = SlabConfig(
            self.folder / "slab",
            4096 + 2 * SEGMENT_BYTES,
            segment_bytes=SEGMENT_BYTES,
            thread_count=2,
            queue_bytes=QUEUE_BYTES,
        )
        return Slab(config, SlabClock())

    def teardown(self) -> None:
        """Removes the file too."""
        super().teardown()
        shutil.rmtree(self.folder)
