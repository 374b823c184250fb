"""Named pins in a page store that expires pages: in slices, in turns, and while they live."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from page_stores.memory_page_store import MemoryPageStore

from kvstore.core import Identity, NamedPinRequest
from kvstore.service.page_io import pin_refresher
from kvstore.service.page_io.pin_refresher import PinUse
from kvstore.storage.page_store import PageKey, Presence
from stores.layered_store import SHARED, LayeredStore
from stores.store_world import PAGE_TOKENS

PERIOD = 60.0
PAGES = 10


class ExpiringStore(MemoryPageStore):
    """Pages that expire a while after their last use, on the test's clock."""

    def __init__(self) -> None:
        self.now = 0.0
        super().__init__(facts=SHARED, queue_bytes=1 << 20)
        self.refresh_seconds = PERIOD
        self.used: dict[PageKey, float] = {}
        # The keys of each call.
        self.asked: list[list[PageKey]] = []

    def there(self, keys: Sequence[PageKey]) -> list[Presence]:
        """Extends the lives of the pages that it has."""
        self.asked.append(list(keys))
        found = super().there(keys)
        self.used |= {key: self.now for key, each in zip(keys, found, strict=True) if each}
        return found

    def pass_time(self, seconds: float) -> None:
        """Drops the pages that nobody used for two periods."""
        self.now += seconds
        for key in list(self.medium.pages):
            if self.used.setdefault(key, self.now) < self.now - 2 * PERIOD:
                self.evict(key)


class Rig:
    """A store over one expiring page store, with prompts of some pages."""

    def __init__(self) -> None:
        self.far = ExpiringStore()
        self.layers = LayeredStore(slots=128, extent_slots=32, has_near=False, shared=self.far)
        [self.refresher] = self.layers.store.tier3.pin_refreshers.values()

    def pin(self, number: int, pages: int = PAGES, *, ttl: float | None = None) -> None:
        """Pins a prompt."""
        tokens = self.layers.sequence(pages, number).tokens[:-4]
        request = NamedPinRequest(f"p{number}", tokens, ttl, require_all=True)
        self.layers.store.named_pins.pin(self.identity, self.layers.namespace_id, request)

    @property
    def identity(self) -> Identity:
        """The tenant."""
        return self.layers.caller.identity

    def remote_tokens(self) -> dict[str, int]:
        """Returns the tokens of each named pin that the page store has."""
        pins = self.layers.store.named_pins.visible(self.identity, None)
        return {each.name: each.remote_token_count for each in pins}

    def pass_time(self, seconds: float) -> None:
        """Lets time pass, with a step in each period and writes after it."""
        while seconds > 0:
            self.layers.world.clock.now += min(seconds, PERIOD)
            self.far.pass_time(min(seconds, PERIOD))
            self.layers.store.named_pins.expire()
            self.refresher.step()
            self.layers.keep()
            seconds -= PERIOD

    def has(self, number: int, pages: int = PAGES) -> bool:
        """Returns whether the page store has a whole prompt."""
        return set(self.layers.keys(pages, number)) <= set(self.far.medium.pages)


@pytest.fixture
def rig() -> Rig:
    """Provides a store with two prompts, both written."""
    rig = Rig()
    for number in (1, 2):
        rig.layers.publish(PAGES, number)
    rig.layers.keep()
    return rig


def test_a_pinned_prompt_does_not_expire(rig: Rig) -> None:
    """An unpinned one does, and so does the pinned one once its pin has ended."""
    rig.pin(1)
    rig.pass_time(10 * PERIOD)
    assert (rig.has(1), rig.has(2)) == (True, False)
    assert rig.remote_tokens() == {"p1": PAGES * PAGE_TOKENS}
    rig.layers.store.named_pins.unpin(rig.identity, rig.layers.namespace_id, "p1")
    rig.pass_time(4 * PERIOD)
    assert not rig.has(1)
    assert rig.refresher.use().absent_pages == 0


def test_a_pin_with_an_end_keeps_its_pages_until_then(rig: Rig) -> None:
    """They expire after their lives in the page store."""
    rig.pin(1, ttl=5 * PERIOD)
    rig.pass_time(4 * PERIOD)
    assert rig.has(1)
    rig.pass_time(4 * PERIOD)
    assert not rig.has(1)


def test_lost_pages_are_written_again(rig: Rig) -> None:
    """The page store evicted some, and nobody used them since."""
    rig.pin(1)
    rig.pass_time(PERIOD)
    keys = rig.layers.keys(PAGES, 1)
    for key in keys[4:]:
        rig.far.evict(key)
    rig.layers.world.clock.now += PERIOD
    rig.refresher.step()
    assert rig.remote_tokens() == {"p1": 4 * PAGE_TOKENS}
    assert rig.layers.store.tier3.use().page_stores[0].pins.absent_pages == PAGES - 4
    rig.layers.keep()
    assert rig.has(1)
    # It is asked again soon, and not only after the period.
    rig.layers.world.clock.now += pin_refresher.FIRST_RETRY_SECONDS
    rig.refresher.step()
    assert rig.remote_tokens() == {"p1": PAGES * PAGE_TOKENS}
    assert rig.refresher.use().absent_pages == 0


def test_pages_that_are_never_stored_are_asked_for_ever_less_often(rig: Rig) -> None:
    """A host that writes nothing asks as often as for other pins in the end."""
    rig.pin(1)
    rig.far.medium.pages.clear()
    clock, asked = rig.layers.world.clock, []
    for _ in range(int(3 * PERIOD)):
        before = len(rig.far.asked)
        rig.refresher.step()
        if len(rig.far.asked) > before:
            asked.append(clock.now)
        clock.now += 1.0
    pauses = [after - before for before, after in pairwise(asked)]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]


def test_a_step_is_bounded_and_tenants_take_turns(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tenant with many long pins keeps another one's short pin waiting for a slice."""
    monkeypatch.setattr(pin_refresher, "SLICE_PAGES", 4)
    monkeypatch.setattr(pin_refresher, "SLICES_A_STEP", 3)
    rig.pin(1)
    rig.pin(2)
    other = rig.layers.world.worker(tenant="other")
    namespace_id = rig.layers.world.open_namespace(other)
    mine = rig.layers.caller, rig.layers.namespace_id, rig.layers.digest
    rig.layers.caller, rig.layers.namespace_id = other, namespace_id
    namespace = rig.layers.world.cache.namespaces[namespace_id]
    rig.layers.publish(2, 3)
    rig.pin(3, 2)
    rig.refresher.step()
    firsts = [(keys[0].namespace == namespace.digest, len(keys)) for keys in rig.far.asked[-3:]]
    # After the first slice, each has the page before it too.
    assert firsts == [(False, 4), (True, 2), (False, 5)]
    rig.refresher.step()
    assert [len(keys) for keys in rig.far.asked[-3:]] == [3, 4, 5]
    rig.refresher.step()
    assert rig.refresher.use() == PinUse(2 * PAGES, 2)
    before = len(rig.far.asked)
    rig.refresher.step()
    assert len(rig.far.asked) == before
    rig.layers.caller, rig.layers.namespace_id, rig.layers.digest = mine


def test_an_engine_that_is_away_costs_nothing(rig: Rig) -> None:
    """A refresh begins anew once it is back, and finds what was lost meanwhile."""
    rig.pin(1)
    rig.far.go_away()
    before = len(rig.far.asked)
    rig.pass_time(3 * PERIOD)
    assert len(rig.far.asked) == before
    assert rig.remote_tokens() == {"p1": 0}
    rig.far.come_back()
    rig.pass_time(2 * PERIOD)
    assert rig.has(1)


def test_one_that_falls_silent_in_a_refresh_tells_nothing(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last answer is no loss of pages, so none is offered."""
    rig.pin(1)
    rig.pass_time(PERIOD)
    there = rig.far.there

    def fall_silent(keys: Sequence[PageKey]) -> list[Presence]:
        rig.far.go_away()
        there(keys)
        return [Presence.ABSENT] * len(keys)

    monkeypatch.setattr(rig.far, "there", fall_silent)
    rig.layers.world.clock.now += PERIOD
    rig.refresher.step()
    assert rig.remote_tokens() == {"p1": PAGES * PAGE_TOKENS}
    assert not rig.layers.world.cache.writes_wanted(0)


def test_a_pin_that_ends_in_a_refresh_is_forgotten(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the page store is asked for its first slice."""
    monkeypatch.setattr(pin_refresher, "SLICE_PAGES", 4)
    rig.pin(1)
    there = rig.far.there

    def unpin(keys: Sequence[PageKey]) -> list[Presence]:
        rig.layers.store.named_pins.unpin(rig.identity, rig.layers.namespace_id, "p1")
        return there(keys)

    monkeypatch.setattr(rig.far, "there", unpin)
    asked = len(rig.far.asked)
    rig.refresher.step()
    assert len(rig.far.asked) == asked + 1
    rig.refresher.step()
    assert rig.refresher.use() == PinUse(4, 0)


def test_a_page_store_of_this_host_alone_needs_none() -> None:
    """Its pages do not expire."""
    layers = LayeredStore()
    assert layers.store.tier3.pin_refreshers == {}
    uses = layers.store.tier3.use().page_stores
    assert [each.pins for each in uses] == [PinUse(), PinUse()]
    layers.close()
