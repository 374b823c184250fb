"""A device that failed for good: its pages are not marked corrupt, and no worker gets one."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial

import pytest
from xxhash import xxh3_64_intdigest

from device.card import EVERY_CALL, Card, ServerCuda
from kvstore.core.pool.tier_policy import TierPolicy, WritePolicy
from kvstore.core.values.requests import Caller, Identity, Match, MatchOptions, ReservationRequest
from kvstore.errors import StoreDraining
from kvstore.storage.cuda.device_memory import GRANULARITY, CudaDevice
from stores.store_world import PAGE_BYTES, Worlds, sequence_of
from stores.tiered_store import Tiered
from wire.own_logs import own_logs

PAGES = 3
ADMIN = Identity("uid-0", admin=True)


class OnDevice:
    """A store that verifies all pages of a device, three of which were published."""

    def __init__(self, worlds: Worlds, card: Card, device: CudaDevice) -> None:
        self.card = card
        self.world = worlds(device=device, verify_rate=1.0)
        self.caller = self.world.worker()
        self.namespace_id = self.world.open_namespace(self.caller)
        store = self.world.store
        store.reserve(self.caller, self.namespace_id, [ReservationRequest(9, 0, PAGES)])
        cleared = [xxh3_64_intdigest(bytes(PAGE_BYTES))] * PAGES
        store.insert(self.caller, 9, sequence_of(PAGES, rest=0), checksums=cleared)
        store.abort(self.caller, [9])

    def match(self, caller: Caller, pin_id: int) -> Match:
        """Matches what was published."""
        options = MatchOptions(pin_id)
        return self.world.store.match(caller, self.namespace_id, sequence_of(PAGES), options)


@pytest.fixture
def card(worlds: Worlds) -> Iterator[tuple[Card, CudaDevice]]:
    """Provides a card and the device that it stands in for."""
    del worlds  # ends after it
    card = Card(4 * GRANULARITY)
    with ExitStack() as stack:
        device = stack.enter_context(closing(CudaDevice(0, lambda: ServerCuda(card))))
        yield card, device


def test_pages_of_a_device_that_works_and_refuses_are_corrupt(
    worlds: Worlds, card: tuple[Card, CudaDevice]
) -> None:
    """One call that fails makes these pages untrusted, and the store continues."""
    store = OnDevice(worlds, *card)
    store.card.fail = "read"
    assert store.match(store.caller, 1).matched_token_count == 0
    assert store.world.store.stats(ADMIN).counters.corrupt_page_count == PAGES
    assert not store.world.store.device.lost


def test_pages_of_a_device_that_failed_for_good_stay(
    worlds: Worlds, card: tuple[Card, CudaDevice]
) -> None:
    """The match is refused as during draining, and holds nothing; one line is logged."""
    store = OnDevice(worlds, *card)
    told: list[str] = []
    store.world.store.device.on_lost(partial(told.append, "health"))
    held = store.match(store.caller, 1)
    assert held.matched_token_count > 0
    store.card.fail = EVERY_CALL
    other = store.world.worker()
    store.world.open_namespace(other)
    with own_logs() as logs:
        for pin_id in (2, 3):
            with pytest.raises(StoreDraining):
                store.match(other, pin_id)
    events = [each["event"] for each in logs]
    assert events == ["device_does_not_answer", "device_lost"]
    assert told == ["health"]
    stats = store.world.store.stats(ADMIN)
    assert (stats.counters.corrupt_page_count, stats.pin_count) == (0, 1)
    store.world.check()
    # A worker can still release pages that it held before, and close its lease.
    store.world.store.release(store.caller, [1])
    store.world.store.revoke(store.caller)
    assert store.world.store.stats(ADMIN).pin_count == 0


def test_nothing_is_moved_once_the_device_failed_for_good(
    worlds: Worlds, card: tuple[Card, CudaDevice]
) -> None:
    """After the first refused copy the mover tries no other; one line is logged."""
    stand_in, device = card
    policy = TierPolicy(write=WritePolicy.THROUGH)
    world = worlds(slots=4, extent_slots=4, lower_slots=20, tier_policy=policy, device=device)
    with closing(world):
        tiered = Tiered(world)
        for number in range(2):
            tiered.publish(number)
        stand_in.fail = EVERY_CALL
        with own_logs() as logs:
            for _ in range(3):
                world.store.mover.step()
        assert [each["event"] for each in logs] == ["device_does_not_answer", "device_lost"]
        assert world.cache.moves == {}
        calls = len(stand_in.calls)
        world.store.mover.step()
        assert len(stand_in.calls) == calls
        with pytest.raises(StoreDraining):
            tiered.tiers(0)
