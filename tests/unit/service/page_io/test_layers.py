"""Loads over two page stores: this host's disk first, and then one that hosts share."""

from collections.abc import Iterator
from threading import Condition, Event, Lock, Thread
from unittest.mock import Mock

import pytest

from kvstore.core.tiers.load_or_recompute import MOST_LOOK_SECONDS, PROBE_SECONDS
from kvstore.core.values.requests import Match, MatchOptions, Prefetched
from kvstore.core.values.slots import SlotState
from kvstore.errors import NamespaceNotFound
from kvstore.service.page_io.loads import load_call, load_source
from kvstore.service.page_io.loads.load_source import MOST_LOOKING, MOST_WAITING, RUN_PAGES
from kvstore.service.page_io.slow_tier import TierKind
from kvstore.storage.page_store import StoreState
from stores.layered_store import LIMIT, LayeredStore
from stores.store_world import PAGE_BYTES, PAGE_TOKENS

PAGES = 40
# Tokens a second that an engine computes.
SPEED = 10_000
# One for which a load pays on any machine.
LOW_SPEED = 1


@pytest.fixture
def store() -> Iterator[LayeredStore]:
    """Provides a store with 64 slots."""
    made = LayeredStore()
    yield made
    made.close()


def loaded(match: Match) -> tuple[int, int, int]:
    """Returns the pages that matched, those that tier 3 alone had, and the shared part of them."""
    tokens = (
        match.matched_token_count,
        match.tier_3_loaded_token_count,
        match.remote_loaded_token_count,
    )
    matched, tier_3, remote = (each // PAGE_TOKENS for each in tokens)
    return matched, tier_3, remote


@pytest.mark.parametrize("near", [0, 7, PAGES])
def test_the_rest_of_a_path_comes_from_the_shared_page_store(
    store: LayeredStore, near: int
) -> None:
    """The answer says how much came from either, and the next match finds all in memory."""
    store.spread(PAGES, near)
    assert loaded(store.match(PAGES)) == (PAGES, PAGES, PAGES - near)
    assert loaded(store.match(PAGES)) == (PAGES, 0, 0)
    uses = store.store.tier3.use().page_stores
    assert [each.kind for each in uses] == [TierKind.SLAB, TierKind.REMOTE]
    size = store.world.layout.page_bytes
    assert [each.loads.byte_count for each in uses] == [near * size, (PAGES - near) * size]
    assert [each.loads.look_count for each in uses] == [0, int(near < PAGES)]
    assert sum(store.far.reads) == PAGES - near


def test_each_page_store_counts_the_prefill_that_it_saves(store: LayeredStore) -> None:
    """By the caller's speed, once, and for nobody who states none."""

    def saved() -> list[float]:
        return [each.loads.saved_prefill_seconds for each in store.store.tier3.use().page_stores]

    store.spread(PAGES, 10)
    assert loaded(store.match(PAGES)) == (PAGES, PAGES, PAGES - 10)
    assert saved() == [0.0, 0.0]
    store.evict()
    expected = [pages * PAGE_TOKENS / LOW_SPEED for pages in (10, PAGES - 10)]
    for _ in range(2):
        assert loaded(store.match(PAGES, speed=LOW_SPEED))[0] == PAGES
        assert saved() == pytest.approx(expected)


def test_a_match_goes_on_below_what_memory_has(store: LayeredStore) -> None:
    """Pages in memory, on the disk and in the shared page store make one path."""
    store.spread(PAGES, 20)
    store.match(10)
    assert loaded(store.match(PAGES)) == (PAGES, PAGES - 10, PAGES - 20)


def test_both_are_read_at_once(store: LayeredStore) -> None:
    """The shared page store is asked while the disk reads, and its pages wait for the disk's."""
    store.spread(PAGES, 20)
    store.near.held = True
    found: list[Match] = []
    asked = Event()
    store.far.before_look = lambda _: asked.set()
    thread = Thread(target=lambda: found.append(store.match(PAGES)), daemon=True)
    thread.start()
    assert asked.wait(LIMIT)
    while not store.far.reads:
        assert thread.is_alive()
    assert store.cached == 0
    store.near.let_go()
    thread.join(LIMIT)
    assert [loaded(each) for each in found] == [(PAGES, PAGES, PAGES - 20)]


def test_without_a_disk_all_comes_from_the_shared_page_store() -> None:
    """It is the only page store then."""
    store = LayeredStore(has_near=False)
    store.publish(PAGES)
    store.keep()
    store.evict()
    assert loaded(store.match(PAGES)) == (PAGES, PAGES, PAGES)
    use = store.store.tier3.use()
    assert [each.kind for each in use.page_stores] == [TierKind.REMOTE]
    assert (use.disk.page_count, use.bandwidth, use.declined_count) == (0, 0.0, 0)
    store.close()


def test_a_page_store_that_is_away_costs_nothing(store: LayeredStore) -> None:
    """It is not asked, and the disk's pages come."""
    store.spread(PAGES, 20)
    store.far.state = StoreState.AWAY
    assert loaded(store.match(PAGES)) == (20, 20, 0)
    assert store.far.looks == []


class CountingLock:
    """A lock that counts how often it was taken."""

    def __init__(self, lock: Lock) -> None:
        self.count = 0
        self._lock = lock

    def __enter__(self) -> None:
        """Takes the lock."""
        self._lock.acquire()
        self.count += 1

    def __exit__(self, *exception: object) -> None:
        """Gives it back."""
        self._lock.release()


@pytest.mark.parametrize("cached", [True, False])
def test_a_match_locates_its_pages_once(
    store: LayeredStore, monkeypatch: pytest.MonkeyPatch, *, cached: bool
) -> None:
    """It takes the mutex once if all are cached, and else once more after their load."""
    store.spread(PAGES, 10)
    if cached:
        store.match(PAGES)
    cache, matching = store.world.cache, store.world.store.match.__self__  # type: ignore[attr-defined]
    mutex = CountingLock(matching._mutex)
    monkeypatch.setattr(matching, "_mutex", mutex)
    located = Mock(wraps=cache.locate)
    monkeypatch.setattr(cache, "locate", located)
    assert loaded(store.match(PAGES))[:2] == (PAGES, 0 if cached else PAGES)
    assert (mutex.count, located.call_count) == (1 if cached else 2, 1)


# Runs.


def test_slots_are_taken_as_pages_come(store: LayeredStore) -> None:
    """One run of 16 at first, then two, then four."""
    store.spread(PAGES, 0)
    store.far.held = True
    assert store.page_count(store.match(PAGES, remaining=0.02)) == 0
    assert store.namespace.arena.counts[SlotState.MOVING] == RUN_PAGES
    store.far.carry_out(0)
    assert store.namespace.arena.counts[SlotState.MOVING] == PAGES - RUN_PAGES
    assert store.cached == RUN_PAGES
    assert store.far.reads == [RUN_PAGES, RUN_PAGES, PAGES - 2 * RUN_PAGES]
    store.far.let_go()
    assert store.cached == PAGES


def test_an_engine_that_lies_evicts_a_run_at_most() -> None:
    """It says that it has all pages, and then has none: 16 pages leave memory for a match."""
    store = LayeredStore(slots=160)
    store.publish(150, number=1)
    store.far.lies = True
    store.grow_old()
    assert store.page_count(store.match(100)) == 0
    assert store.world.cache.counters.evicted_page_count == RUN_PAGES - 10
    assert store.page_count(store.match(100)) == 0
    assert store.world.cache.counters.evicted_page_count == RUN_PAGES - 10
    store.close()


def test_runs_are_no_larger_than_the_room(store: LayeredStore) -> None:
    """A page store that reads few of the large pages at a time gives all of them."""
    store.spread(PAGES, 0)
    store.far._queue_bytes = 5 * PAGE_BYTES
    assert store.page_count(store.match(PAGES)) == RUN_PAGES
    assert max(store.far.reads) == 5
    assert store.far.use().counters.refused_reads == 0


def test_a_load_waits_for_room_that_it_uses_itself(store: LayeredStore) -> None:
    """Its reads are answered late. Then the next ones have room."""
    store.spread(2, 0, number=1)
    # The page store's bandwidth is known by now, so a load is longer than the room.
    assert store.page_count(store.match(2, number=1)) == 2
    store.spread(PAGES, 0)
    store.far._queue_bytes = 20 * PAGE_BYTES
    store.far.held = True
    assert store.page_count(store.match(PAGES, remaining=0.02)) == 0
    store.far.carry_out(0)
    assert store.far.reads[2:] == [RUN_PAGES, 20 - RUN_PAGES]
    store.far.let_go()
    assert store.cached == PAGES
    assert store.far.use().counters.refused_reads == 0


def test_pages_used_lately_are_not_evicted_for_it(store: LayeredStore) -> None:
    """Within a minute of their use a load from the shared page store takes FREE slots alone."""
    store.spread(PAGES, 0)
    store.publish(60, number=1)
    assert store.page_count(store.match(PAGES)) == 64 - 60
    assert store.world.cache.counters.evicted_page_count == PAGES
    store.grow_old()
    store.match(PAGES)
    # An eighth of the slots at a time, and what came stays.
    assert store.cached == 64
    assert store.page_count(store.match(PAGES)) == PAGES


def test_the_disk_evicts_as_a_reservation(store: LayeredStore) -> None:
    """Its pages are there, and it is not careful."""
    store.spread(PAGES, PAGES)
    store.publish(60, number=1)
    assert store.page_count(store.match(PAGES)) == PAGES


def test_a_late_caller_gets_what_is_there() -> None:
    """10 pages come each 100 ms, and the call waits half a second for them."""
    store = LayeredStore()
    store.spread(64, 0)
    store.far.drips(store.world.clock, page_seconds=0.01, seconds=0.5)
    found = store.match(64, remaining=2.0)
    assert store.page_count(found) == 3 * RUN_PAGES
    assert store.store.tier3.use().page_stores[1].loads.late_count == 1
    store.far.stop()
    assert store.page_count(store.match(64)) == 64
    store.close()


def test_a_gap_ends_a_load(store: LayeredStore) -> None:
    """Pages after one that is corrupt are dropped, whatever came of them."""
    store.spread(PAGES, 8)
    store.far.spoil(store.keys(PAGES)[20])
    assert loaded(store.match(PAGES)) == (20, 20, 12)
    assert store.namespace.arena.counts[SlotState.MOVING] == 0


def test_a_load_that_takes_too_long_begins_no_more_reads(store: LayeredStore) -> None:
    """The pages that came are published."""
    store.spread(PAGES, 0)
    store.far.held = True
    store.match(PAGES, remaining=0.02)
    store.world.clock.now += 100.0
    store.far.let_go()
    assert store.far.reads == [RUN_PAGES]
    assert store.cached == RUN_PAGES


def test_a_call_waits_only_for_its_own_part_of_a_load(store: LayeredStore) -> None:
    """Another call's load of a longer prompt goes on for long after the pages that both want."""
    store.spread(PAGES, 0)
    store.far.held = True
    store.match(PAGES, remaining=0.02)
    found: list[Match] = []
    thread = Thread(target=lambda: found.append(store.match(RUN_PAGES)), daemon=True)
    thread.start()
    store.far.carry_out(0)
    thread.join(LIMIT)
    assert [loaded(each)[0] for each in found] == [RUN_PAGES]
    assert store.cached == RUN_PAGES
    store.far.let_go()


# The time of a call.


def test_a_look_and_a_read_share_a_quarter_of_the_call(
    store: LayeredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look takes most of it, so little is left for the read."""
    waited: list[float | None] = []

    class Waits(Condition):
        """Notes the seconds that a call waits."""

        def wait(self, timeout: float | None = None) -> bool:
            """Waits for a moment."""
            waited.append(timeout)
            return super().wait(0.01)

    monkeypatch.setattr(load_call, "Condition", Waits)
    store.spread(PAGES, 0)
    clock = store.world.clock
    begun = clock.now

    def take_long(_: float) -> None:
        clock.now += 0.9

    store.far.before_look = take_long
    store.far.held = True
    match = store.match(PAGES, remaining=4.0)
    assert store.page_count(match) == 0
    assert store.far.looks == [begun + 1.0]
    assert waited == [pytest.approx(0.1)]
    store.far.let_go()


def test_a_call_waits_longer_for_the_disk(
    store: LayeredStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four fifths of its time, as long as the disk's pages come next; then what is left of it."""
    store.spread(PAGES, 20)
    store.near.held = store.far.held = True
    waited: list[float | None] = []

    class Waits(Condition):
        """Notes the seconds that a call waits, and lets the disk's pages come."""

        def wait(self, timeout: float | None = None) -> bool:
            """Returns at once."""
            waited.append(timeout)
            self.release()
            store.near.let_go()
            self.acquire()
            return len(waited) < 2

    monkeypatch.setattr(load_call, "Condition", Waits)
    assert loaded(store.match(PAGES, remaining=4.0)) == (20, 20, 0)
    assert waited == [pytest.approx(3.2), pytest.approx(1.0)]
    store.far.let_go()


def test_an_engine_that_hangs_costs_no_page_of_the_disk(store: LayeredStore) -> None:
    """Neither in its answer nor in its read; the call just waits for a quarter of its time."""
    store.spread(PAGES, 20)
    clock = store.world.clock

    def time_out(deadline: float) -> None:
        clock.now = deadline

    store.far.before_look = time_out
    store.far.hangs = True
    assert loaded(store.match(PAGES, remaining=1.0)) == (20, 20, 0)
    store.far.hangs, store.far.held = False, True
    store.evict()
    clock.now += PROBE_SECONDS
    store.far.before_look = lambda _: None
    assert loaded(store.match(PAGES, remaining=0.1)) == (20, 20, 0)
    store.far.let_go()


def test_a_call_whose_time_is_over_does_not_ask(store: LayeredStore) -> None:
    """The disk's pages come all the same."""
    store.spread(PAGES, 20)
    assert loaded(store.match(PAGES, remaining=0.0))[2] == 0
    assert store.far.looks == []


def test_slow_looks_are_declined_for_an_engine_that_states_no_speed(store: LayeredStore) -> None:
    """Each ten seconds one call asks again."""
    store.spread(PAGES, 0)
    store.far.lies = False
    clock = store.world.clock

    def take_a_while(_: float) -> None:
        clock.now += 2 * MOST_LOOK_SECONDS

    store.far.before_look = take_a_while
    store.match(2, number=5)
    assert len(store.far.looks) == 1
    assert store.page_count(store.match(PAGES)) == 0
    assert len(store.far.looks) == 1
    use = store.store.tier3.use().page_stores[1].loads
    assert (use.look_count, use.declined_count) == (1, 1)
    assert use.look_seconds == pytest.approx(2 * MOST_LOOK_SECONDS)
    clock.now += PROBE_SECONDS
    assert store.page_count(store.match(PAGES)) == PAGES
    assert len(store.far.looks) == 2


def test_looks_that_come_too_late_are_declined_even_for_long_prompts(store: LayeredStore) -> None:
    """S3 answers after 300 ms, and the call waits for 250: slow is not dead."""
    store.spread(PAGES, 0)
    clock = store.world.clock

    def time_out(deadline: float) -> None:
        clock.now = deadline

    store.far.before_look = time_out
    store.far.hangs = True
    for _ in range(5):
        assert store.page_count(store.match(PAGES, remaining=1.0, speed=1)) == 0
    assert len(store.far.looks) == 1
    use = store.store.tier3.use().page_stores[1].loads
    assert (use.late_look_count, use.declined_count) == (1, 4)


def test_a_shared_page_store_that_returns_is_asked_at_once(store: LayeredStore) -> None:
    """Its looks were late before it was away, and say nothing of it afterwards."""
    store.spread(PAGES, 0)
    clock = store.world.clock

    def time_out(deadline: float) -> None:
        clock.now = deadline

    store.far.before_look = time_out
    store.far.hangs = True
    assert store.page_count(store.match(PAGES, remaining=1.0, speed=1)) == 0
    store.far.before_look = lambda _: None
    store.far.hangs = False
    assert store.page_count(store.match(PAGES, remaining=1.0, speed=1)) == 0, "it is found slow"
    store.far.state = StoreState.AWAY
    assert store.page_count(store.match(PAGES, remaining=1.0, speed=1)) == 0
    store.far.state = StoreState.OPEN
    assert store.page_count(store.match(PAGES, remaining=1.0, speed=1)) == PAGES


def test_a_look_is_not_worth_its_time_for_few_tokens(store: LayeredStore) -> None:
    """With 10 ms a look, 40 tokens at 10,000 a second are computed sooner; 160 are not."""
    store.spread(PAGES, 0)
    clock = store.world.clock

    def take_a_while(_: float) -> None:
        clock.now += 0.01

    store.far.before_look = take_a_while
    store.match(1, number=5, speed=SPEED)
    assert store.page_count(store.match(10, speed=SPEED)) == 0
    assert len(store.far.looks) == 1
    assert store.page_count(store.match(PAGES, speed=SPEED)) == PAGES


# Places.


def test_places_to_ask_are_few(store: LayeredStore) -> None:
    """Without one the call gets the disk's pages and does not ask."""
    store.spread(PAGES, 20)
    looking = store.loader._sources[1].looking
    for _ in range(MOST_LOOKING):
        assert looking.take("uid-1", is_alone=True)
    assert loaded(store.match(PAGES)) == (20, 20, 0)
    assert store.far.looks == []
    looking.give_back("uid-1")
    assert loaded(store.match(PAGES)) == (PAGES, PAGES - 20, PAGES - 20)


def test_waiting_for_the_shared_page_store_takes_no_place_of_the_disk(store: LayeredStore) -> None:
    """With all places of the one taken, loads from the other go on."""
    store.spread(PAGES, 20)
    near, far = (store.loader._sources[number].waiting for number in (0, 1))
    for _ in range(MOST_WAITING):
        assert far.take("uid-1", is_alone=True)
    assert loaded(store.match(PAGES)) == (20, 20, 0)
    assert store.far.looks == []
    for _ in range(MOST_WAITING):
        far.give_back("uid-1")
        assert near.take("uid-1", is_alone=True)
    assert loaded(store.match(PAGES)) == (PAGES, PAGES - 20, PAGES - 20)


def test_a_tenant_leaves_places_to_ask_to_others() -> None:
    """With two of its calls asking, a third one does not; another tenant's call does."""
    store = LayeredStore(slots=128, extent_slots=64)
    store.spread(PAGES, 20)
    other = store.world.worker(tenant="uid-2")
    looking = store.loader._sources[1].looking
    for _ in range(MOST_LOOKING // 2):
        assert looking.take("uid-1", is_alone=False)
    assert loaded(store.match(PAGES)) == (20, 20, 0)
    assert store.far.looks == []
    namespace_id = store.world.open_namespace(other)
    options = MatchOptions(1)
    store.store.match(other, namespace_id, store.sequence(PAGES), options, LIMIT)
    assert len(store.far.looks) == 1
    store.close()


# Prefetch.


def prefetched(store: LayeredStore, pages: int, number: int = 0) -> int:
    """Prefetches a path; returns the number of pages that are being loaded."""
    asked = store.namespace_id, store.sequence(pages, number)
    return store.loader.prefetch(store.caller, *asked).loading_token_count // PAGE_TOKENS


def test_a_prefetch_brings_pages_without_a_match(store: LayeredStore) -> None:
    """A match then finds all of them in memory."""
    store.spread(PAGES, 20)
    assert prefetched(store, PAGES) == PAGES
    assert store.cached == PAGES
    assert loaded(store.match(PAGES)) == (PAGES, 0, 0)
    assert prefetched(store, PAGES) == 0


def test_a_match_joins_a_prefetch(store: LayeredStore) -> None:
    """It waits for the pages that are on their way, and asks only for those beyond them."""
    store.spread(PAGES, 0)
    store.far.held = True
    assert prefetched(store, 20) == 20
    assert prefetched(store, 20) == 20
    assert sum(store.far.reads) <= 20
    found: list[Match] = []
    thread = Thread(target=lambda: found.append(store.match(PAGES)), daemon=True)
    thread.start()
    store.far.let_go()
    thread.join(LIMIT)
    assert [loaded(each)[0] for each in found] == [PAGES]
    assert sum(store.far.reads) == PAGES


def test_a_prefetch_evicts_nothing(store: LayeredStore) -> None:
    """It takes FREE slots, and a match then makes room for the rest."""
    store.spread(PAGES, PAGES)
    store.publish(54, number=1)
    evicted = store.world.cache.counters.evicted_page_count
    assert prefetched(store, PAGES) == 10
    assert store.world.cache.counters.evicted_page_count == evicted
    assert loaded(store.match(PAGES)) == (PAGES, PAGES - 10, 0)


@pytest.mark.parametrize("is_operator", [False, True])
def test_a_prefetch_that_may_evict_takes_what_nobody_used_lately(
    store: LayeredStore, *, is_operator: bool
) -> None:
    """As a match does, and nothing that was used within the last minute."""
    who = store.caller.identity if is_operator else store.caller
    store.spread(PAGES, 0)
    store.publish(60, number=1)
    asked = who, store.namespace_id, store.sequence(PAGES)
    evicted = store.world.cache.counters.evicted_page_count
    store.loader.prefetch(*asked, may_evict=True)
    assert store.loader.prefetch(*asked).memory_token_count == 4 * PAGE_TOKENS
    assert store.world.cache.counters.evicted_page_count == evicted
    store.grow_old()
    store.loader.prefetch(*asked, may_evict=True)
    assert store.loader.prefetch(*asked).memory_token_count == PAGES * PAGE_TOKENS
    assert store.world.cache.counters.evicted_page_count == evicted + PAGES - 4
    assert loaded(store.match(PAGES)) == (PAGES, 0, 0)


@pytest.mark.parametrize("near", [0, 7, PAGES])
def test_a_prefetch_says_which_pages_hosts_share(store: LayeredStore, near: int) -> None:
    """Also one that joins the load, and one that finds them all in memory."""
    store.spread(PAGES, near)
    store.far.held = store.near.held = True
    asked = store.caller, store.namespace_id, store.sequence(PAGES)
    rest = (PAGES - near) * PAGE_TOKENS
    for _ in range(2):
        found = store.loader.prefetch(*asked)
        assert found.remote_token_count == rest
        assert found.loading_token_count == PAGES * PAGE_TOKENS
    store.near.let_go()
    store.far.let_go()
    assert store.loader.prefetch(*asked) == (PAGES * PAGE_TOKENS, 0, 0, 0)


def test_an_operator_s_prefetch_asks_although_a_miss_is_likely(store: LayeredStore) -> None:
    """It needs no look, which the page store may skip, and more than one trip for a long path."""
    store.spread(PAGES, 0)
    asked = store.namespace_id, store.sequence(PAGES)
    looks = len(store.far.looks)
    found = store.loader.prefetch(store.caller.identity, *asked)
    assert found == (0, PAGES * PAGE_TOKENS, 0, PAGES * PAGE_TOKENS)
    assert len(store.far.looks) == looks
    store.evict()
    store.far.go_away()
    assert store.loader.prefetch(store.caller.identity, *asked) == (0, 0, 0, 0)


def test_patient_looks_at_a_time_are_bounded(store: LayeredStore) -> None:
    """They take the places of no match, and one beyond the bound finds nothing."""
    store.spread(PAGES, 0)
    found: list[Prefetched] = []
    asked = store.caller.identity, store.namespace_id, store.sequence(PAGES)

    def ask_again(_: float) -> None:
        [source] = [each for each in store.loader._sources.values() if each.is_shared]
        assert not source.looking._taken
        found.append(store.loader.prefetch(*asked))

    store.far.before_look = ask_again
    store.loader.prefetch(*asked)
    # Each asks again while it looks. The third one has no place, and the second one finds all.
    rest = PAGES * PAGE_TOKENS
    assert found == [(0, 0, 0, 0), (0, rest, 0, rest)]


def test_a_patient_look_ends(store: LayeredStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a second it begins no other trip, and what was found by then is loaded."""
    monkeypatch.setattr(load_source, "ASKED_AT_ONCE", 10)
    store.spread(PAGES, 0)

    def wait(_: float) -> None:
        store.world.clock.now += 0.6

    store.far.before_look = wait
    asked = store.caller.identity, store.namespace_id, store.sequence(PAGES)
    for already in (0, 20, 40):
        found = store.loader.prefetch(*asked)
        assert found.memory_token_count == already * PAGE_TOKENS
        assert found.loading_token_count == (20 if already < PAGES else 0) * PAGE_TOKENS


def test_prefetches_of_a_lease_are_bounded(store: LayeredStore) -> None:
    """Another lease has a bound of its own, and so have operators of a tenant."""
    size = store.world.layout.page_bytes
    budget = store.loader._paths._prefetches
    budget._most = 20 * size
    store.spread(PAGES, 0)
    store.spread(PAGES, 0, number=1)
    store.far.held = True
    assert prefetched(store, PAGES) == 20
    assert prefetched(store, PAGES, number=1) == 0
    asked = store.namespace_id, store.sequence(PAGES, 1)
    identity = store.caller.identity
    assert store.loader.prefetch(identity, *asked).loading_token_count == 20 * PAGE_TOKENS
    store.far.let_go()
    assert store.cached == 40
    assert prefetched(store, PAGES, number=1) == 20
    assert not budget._used


@pytest.mark.parametrize("is_operator", [False, True])
def test_a_prefetch_whose_namespace_is_deleted_gives_its_bytes_back(*, is_operator: bool) -> None:
    """It is deleted while the shared page store is asked for the pages."""
    store = LayeredStore()
    store.spread(PAGES, 0)
    identity = store.caller.identity

    def delete(_: float) -> None:
        store.store.delete_namespace(identity, store.namespace_id)

    store.far.before_look, store.far.lies = delete, True
    who = identity if is_operator else store.caller
    with pytest.raises(NamespaceNotFound):
        store.loader.prefetch(who, store.namespace_id, store.sequence(PAGES))
    assert store.loader._paths._prefetches._used == {}
    store.close()
