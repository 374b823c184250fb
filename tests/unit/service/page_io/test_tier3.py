"""Tier 3 of a store: what goes to the disk, what comes back, and when."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvstore.assembly.tier_setup import open_slab
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.values.requests import Identity, MatchOptions, ReservationRequest, Sequence
from kvstore.core.values.slots import SlotState
from kvstore.errors import NamespaceNotFound, PinNotFound
from kvstore.service.page_io.loads.load_call import NO_PART
from kvstore.service.page_io.loads.load_source import MOST_WAITING
from kvstore.service.page_io.slow_tier import SlowTier, TierState
from kvstore.storage.errors import SlabInUse
from kvstore.storage.write_admission import SecondTouch
from stores.disk_store import LIMIT, PAGES, DiskStores, in_background, page_count
from wire.own_logs import own_logs

FASTEST = (1 << 32) - 1


def test_what_was_kept_is_matched_by_a_successor(stores: DiskStores) -> None:
    """With its bytes, which are compared with their checksums once more."""
    store = stores.open()
    for number in range(3):
        store.write(number)
    later = stores.reopen(store, verify_rate=1.0)
    for number in range(3):
        assert later.tiers(number) == [1]
    counters = later.world.cache.counters
    assert (counters.loaded_page_count, counters.corrupt_page_count) == (3 * PAGES, 0)
    assert counters.verified_page_count == 3 * PAGES
    assert later.ask(0).tier_3_token_count == 0


def test_a_page_is_written_at_its_second_touch(stores: DiskStores) -> None:
    """The insert is the first, a match the second; unless it is told otherwise."""
    store = stores.open(admission=SecondTouch(100))
    store.write(0)
    assert store.on_disk(0) == 0
    assert store.tiers(0) == [1]
    store.settle()
    assert store.on_disk(0) == PAGES
    assert store.world.store.tier3.use().disk.counters.written_pages == PAGES
    store.tiers(0)
    assert not store.world.cache.writes_wanted()


def test_what_is_slower_to_load_than_to_compute_is_a_miss(stores: DiskStores) -> None:
    """It is counted, the answer says what there is, and others are still served."""
    store = stores.open()
    store.write(0)
    store.write(1)
    later = stores.reopen(store)
    assert page_count(later.ask(0, LIMIT, FASTEST)) == PAGES
    missed = later.ask(1, LIMIT, FASTEST)
    assert (page_count(missed), missed.tier_3_token_count) == (0, 8)
    use = later.world.store.tier3.use()
    assert use.declined_count == 1
    assert use.bandwidth > 0
    assert page_count(later.ask(1, LIMIT)) == PAGES


def test_a_match_says_which_tokens_the_disk_alone_had(stores: DiskStores) -> None:
    """The first match waits for the disk, and the second finds the pages in memory."""
    store = stores.open()
    store.write(0)
    later = stores.reopen(store)
    found = [later.ask(0).tier_3_loaded_token_count for _ in range(2)]
    assert found == [PAGES * later.world.layout.page_tokens, 0]


def test_a_load_outlives_its_caller(stores: DiskStores) -> None:
    """A caller whose time is over gets the pages so far, and the next one all of them."""
    store = stores.open()
    store.write(0)
    later = stores.reopen(store)
    later.slab.closed = True
    missed = later.ask(0, 0.001)
    assert (page_count(missed), missed.tier_3_token_count) == (0, 8)
    assert later.world.cache.namespaces[later.namespace_id].arena.counts[SlotState.MOVING] == PAGES
    waiting, found = in_background(later, 0)
    assert later.slab.asked.wait(LIMIT)
    later.slab.let_go()
    waiting.join(LIMIT)
    assert [page_count(each) for each in found] == [PAGES]
    assert later.slab.use().counters.read_pages == PAGES
    later.move()


def test_a_repeated_match_is_answered_whatever_became_of_its_base(stores: DiskStores) -> None:
    """A call that came before asks for nothing anew, of the disk neither."""
    store = stores.open()
    store.write(0)
    whole = store.sequence(0)
    page = store.world.layout.page_tokens
    on = Sequence(whole.tokens[4 * page :], position=page, base_pin_id=101)
    asked = [(whole, MatchOptions(101)), (on, MatchOptions(102))]
    ask, caller, namespace_id = store.world.store.match, store.caller, store.namespace_id
    _, first = (ask(caller, namespace_id, sequence, options) for sequence, options in asked)
    store.world.store.release(caller, [101])
    assert ask(caller, namespace_id, on, MatchOptions(102)) == first
    with pytest.raises(PinNotFound):
        ask(caller, namespace_id, on, MatchOptions(103))


def test_few_calls_wait_at_a_time(stores: DiskStores) -> None:
    """A caller beyond that number is answered at once."""
    store = stores.open()
    store.write(0)
    later = stores.reopen(store)
    later.slab.closed = True
    places = later.world.store.tier3.loader._sources[0].waiting
    for _ in range(MOST_WAITING):
        assert places.take("uid-1", is_alone=True)
    assert page_count(later.ask(0)) == 0
    assert later.slab.waiting == []
    places.give_back("uid-1")
    waiting, found = in_background(later, 0)
    assert later.slab.asked.wait(LIMIT)
    later.slab.let_go()
    waiting.join(LIMIT)
    assert [page_count(each) for each in found] == [PAGES]


def test_a_page_that_the_disk_spoilt_is_not_published(stores: DiskStores) -> None:
    """The pages after it are not published either, and those before it are."""
    store = stores.open()
    store.write(0)
    store.tier.close()
    data = stores.config.path.read_bytes()
    at = data.index(store.content(0, 1))
    with stores.config.path.open("r+b") as file:
        file.seek(at)
        file.write(b"\xff")
    later = stores.open()
    assert page_count(later.match(0)) == 1
    assert later.slab.use().counters.corrupt_pages == 1
    assert page_count(later.match(0)) == 1


def test_loads_make_memory_grow(stores: DiskStores) -> None:
    """As reservations do, before there is none left."""
    store = stores.open()
    store.write(0)
    later = stores.reopen(store, extent_slots=PAGES)
    later.world.store.growth.due.clear()
    assert page_count(later.ask(0)) == PAGES
    assert later.world.store.growth.due.is_set()


def test_what_the_disk_has_already_is_not_written_again(
    stores: DiskStores, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages computed anew, for nobody waited for them to be loaded, are known to be there."""
    store = stores.open()
    store.write(0)
    later = stores.reopen(store)
    monkeypatch.setattr(later.world.store.tier3.loader, "load", lambda *_: NO_PART)
    later.write(0)
    assert later.slab.use().counters.written_pages == 0
    later.tiers(0)
    assert not later.world.cache.writes_wanted()


def test_a_page_larger_than_the_queue_is_refused(stores: DiskStores) -> None:
    """It holds nothing up, and is cached as before."""
    stores.config = replace(stores.config, queue_bytes=1)
    store = stores.open()
    store.write(0)
    assert store.slab.use().counters.refused_writes > 0
    assert (store.on_disk(0), store.tiers(0)) == (0, [1])


def test_without_a_slot_nothing_is_loaded(stores: DiskStores) -> None:
    """All slots are reserved, and the answer says how much the disk has."""
    store = stores.open()
    store.write(0)
    later = stores.reopen(store)
    request = ReservationRequest(900, 0, 8)
    later.world.store.reserve(later.caller, later.namespace_id, [request])
    missed = later.ask(0)
    assert (page_count(missed), missed.tier_3_token_count) == (0, 8)
    later.world.store.abort(later.caller, [900])
    assert page_count(later.ask(0)) == PAGES


def test_nothing_is_written_below_a_page_that_is_not(stores: DiskStores) -> None:
    """Nobody would find it. That it was worth a write is not forgotten."""

    class AllButTheFirst:
        """Says no of the first page that it is asked about; counts."""

        def __init__(self) -> None:
            self.touches: dict[bytes, int] = {}

        def touch(self, digest: bytes) -> bool:
            """Count, and answer."""
            self.touches[digest] = self.touches.get(digest, 0) + 1
            return digest != next(iter(self.touches))

    admission = AllButTheFirst()
    store = stores.open(admission=admission)
    store.write(0)
    assert store.slab.use().counters.written_pages == 0
    first, *others = admission.touches.values()
    assert (first, set(others)) == (1, {2})


def test_what_the_disk_gave_up_is_written_again(stores: DiskStores) -> None:
    """A full slab makes room, and what left and is in memory is kept at its next touch."""
    store = stores.open(slots=100)
    for number in range(40):
        store.write(number)
    lost = [number for number in range(40) if store.on_disk(number) < PAGES]
    assert lost
    assert store.tiers(lost[0]) == [1]
    store.settle()
    assert store.on_disk(lost[0]) == PAGES


def test_what_a_queue_has_no_room_for_waits(stores: DiskStores) -> None:
    """More is touched than may be on its way, and all of it is written in the end."""
    store = stores.open(slots=16)
    for number in range(6):
        store.publish(number)
    store.settle()
    while store.world.cache.writes_wanted():
        store.settle()
    assert sum(store.on_disk(number) for number in range(6)) >= 5 * PAGES


@pytest.mark.parametrize("write", [WritePolicy.BACK, WritePolicy.THROUGH])
def test_three_tiers_work_together(stores: DiskStores, write: WritePolicy) -> None:
    """Pages without room in two tiers are on the disk, and each has its own bytes."""
    policy = TierPolicy(write=write, low=0.3, high=0.6)
    sizes: dict[str, Any] = {"slots": 4, "lower_slots": 6, "tier_policy": policy}
    store = stores.open(**sizes, verify_rate=1.0)
    for number in range(10):
        store.write(number)
    later = stores.reopen(store, **sizes, verify_rate=1.0)
    for _ in range(2):
        for number in range(10):
            assert page_count(later.ask(number)) == PAGES
            later.settle()
            assert later.tiers(number)
    counters = later.world.cache.counters
    assert counters.loaded_page_count >= 10 * PAGES
    assert counters.corrupt_page_count == 0


def test_a_stranger_learns_nothing_of_a_namespace(stores: DiskStores) -> None:
    """Only its tenant learns if its pages are on the disk."""
    store = stores.open()
    store.write(0)
    tokens = store.sequence(0).tokens
    with pytest.raises(NamespaceNotFound):
        store.world.store.tier3.leading_tokens(Identity("other"), store.namespace_id, tokens)


def test_a_disk_in_use_is_refused_and_one_unusable_is_an_alarm(
    stores: DiskStores, tmp_path: Path
) -> None:
    """The first is for whoever starts it to know, the second for whoever watches."""
    stores.open()
    with pytest.raises(SlabInUse, match="another process"):
        open_slab(stores.config)
    other = tmp_path / "other"
    other.write_bytes(b"no slab")
    with own_logs() as logs:
        tier = open_slab(stores.config.__class__(other, stores.config.size_bytes))
    assert [(each["event"], each["path"]) for each in logs] == [("tier3_unusable", str(other))]
    assert "choose another path" in logs[0]["why"]
    assert tier.use().state is TierState.FAILED
    assert tier.look(bytes(32), [bytes(32)]) == 0
    tier.close()


def test_without_a_disk_there_is_no_tier_3() -> None:
    """And no alarm either."""
    tier = SlowTier()
    assert tier.use().state is TierState.ABSENT
    tier.remove([], [])
    assert tier.settled()
    tier.close()
