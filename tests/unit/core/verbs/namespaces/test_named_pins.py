"""Named pins: what they cover, what keeps them, and what ends them.

Whose they are and how many there may be is in test_named_pins_tenants.py.
"""

from math import inf

import pytest

from core.core_builders import FILLER, NAMESPACE_ID, OWNER, paged, picture
from core.pinned_world import letters_held, names, pin, world_of
from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore.core.values.requests import NamedPinRequest, ReservationRequest, Sequence
from kvstore.errors import IdReused, InvalidField, PrefixNotCached


@pytest.mark.parametrize(
    ("letters", "pages"), [("abcd", 4), ("abc", 3), ("abcdef", 4), ("abx", 2), ("x", 0), ("", 0)]
)
def test_what_is_cached_is_pinned(letters: str, pages: int) -> None:
    """All whole pages that are cached are pinned, the last included; of nothing no pin is made."""
    world = world_of("abcd")
    assert pin(world, "p", letters) == pages
    assert names(world) == (["p"] if pages else [])
    assert world.states() == {"FREE": 4, "CACHED": 4}


def test_tokens_that_fill_no_page_are_not_pinned() -> None:
    """A prefix that ends inside a page is pinned up to that page, and is the same prefix."""
    world = world_of("ab")
    for tokens in (paged("ab") + FILLER, paged("ab")):
        request = NamedPinRequest("p", tokens, require_all=True)
        assert world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now) == 4
    short = NamedPinRequest("q", FILLER, require_all=True)
    assert world.cache.pin_prefix(OWNER, NAMESPACE_ID, short, world.now) == 0


def test_eviction_spares_what_is_named() -> None:
    """Whatever room is wanted, pinned pages stay; what follows them goes."""
    world = world_of("abcd", "xyz", slots=8)
    pin(world, "p", "abc")
    world.worker.reserve(1, 5)
    assert world.shape() == {"abc": {}}
    assert world.states() == {"RESERVED": 5, "CACHED": 3}
    assert letters_held(world, "p") == 3
    world.laws.check()


def test_unpinned_pages_can_be_evicted() -> None:
    """Ending the pin gives its pages back to eviction; ending it again changes nothing."""
    world = world_of("abcd", slots=4)
    pin(world, "p", "abcd")
    for _ in range(2):
        world.cache.unpin_prefix(OWNER, NAMESPACE_ID, "p")
    assert world.shape() == {"abcd": {}}
    world.worker.reserve(1, 4)
    assert world.states() == {"RESERVED": 4}
    world.laws.check()


def test_later_inserts_are_not_covered() -> None:
    """A later continuation of a pinned prefix is not part of the pin, even if asked again."""
    world = world_of("ab")
    assert pin(world, "p", "abcd") == 2
    world.worker.publish("abcd")
    assert pin(world, "p", "abcd") == 2
    assert pin(world, "q", "abcd") == 4
    assert [letters_held(world, name) for name in ("p", "q")] == [2, 4]


def test_the_same_again_is_answered_and_another_prefix_refused() -> None:
    """A name stands for one prefix, the one asked for, however much of it is cached."""
    world = world_of("abcd")
    assert pin(world, "p", "abx") == 2
    assert pin(world, "p", "abx") == 2
    before = picture(world.namespace.index)
    for letters in ("ab", "abc", "abxy", ""):
        with pytest.raises(IdReused) as error:
            pin(world, "p", letters)
        assert error.value.metadata == {"name": "p"}
    assert picture(world.namespace.index) == before
    assert names(world) == ["p"]


def test_all_can_be_required() -> None:
    """Nothing is pinned if less is cached than required, and the error says how much is."""
    world = world_of("abcd")
    assert pin(world, "all", "abcd", require=True) == 4
    with pytest.raises(PrefixNotCached) as error:
        pin(world, "p", "abcdef", require=True)
    assert error.value.metadata == {"cached": "8", "requested": "12"}
    assert names(world) == ["all"]


def test_what_was_pinned_counts_when_all_is_required_later() -> None:
    """A pin of a part does not turn into one of all; a call that requires all is refused."""
    world = world_of("ab")
    pin(world, "p", "abcd", ttl=5)
    world.worker.publish("abcd")
    with pytest.raises(PrefixNotCached) as error:
        pin(world, "p", "abcd", ttl=50, require=True)
    assert error.value.metadata == {"cached": "4", "requested": "8"}
    assert world.cache.state.named_pins.of(world.namespace)["p"].due == world.now + 5


def test_a_pin_ends_when_its_time_is_over() -> None:
    """At its time to live, not before, and without one never."""
    world = world_of("abcd")
    pin(world, "p", "ab", ttl=5)
    pin(world, "q", "abc")
    assert world.cache.expire_named_pins(world.now + 4.9) == []
    assert [each.name for each in world.cache.expire_named_pins(world.now + 5)] == ["p"]
    assert world.cache.expire_named_pins(1e9) == []
    assert names(world) == ["q"]
    world.laws.check()


@pytest.mark.parametrize(("ttl", "due"), [(7.0, 109.0), (1.0, 103.0), (None, inf)])
def test_the_latest_call_sets_the_time_to_live(ttl: float | None, due: float) -> None:
    """Asked again, a pin lives from then on for as long as this call says."""
    world = world_of("ab")
    pin(world, "p", "ab", ttl=5)
    world.now = 102.0
    pin(world, "p", "ab", ttl=ttl)
    assert world.cache.state.named_pins.of(world.namespace)["p"].due == due


@pytest.mark.parametrize("ttl", [0.0, -1.0])
def test_a_time_to_live_that_is_over_is_refused(ttl: float) -> None:
    """A pin that would end at once is a mistake."""
    world = world_of("ab")
    with pytest.raises(InvalidField) as error:
        pin(world, "p", "ab", ttl=ttl)
    assert error.value.metadata["field"] == "ttl"
    assert names(world) == []


@pytest.mark.parametrize("removed", ["a", "ab", "abc", ""])
def test_a_pin_ends_as_a_whole_when_one_of_its_pages_is_removed(removed: str) -> None:
    """Whichever of its pages goes, the pin goes, and keeps no page detached."""
    world = world_of("abcd", "abx")
    pin(world, "p", "abc")
    pin(world, "inner", "ab")
    assert world.evict_prefix(removed)[1] == 0
    assert names(world) == (["inner"] if removed == "abc" else [])
    assert "DETACHED" not in world.states()
    world.laws.check()
    world.worker.publish("abcd")
    assert pin(world, "p", "x") == 0


def test_what_continues_a_pin_may_be_removed() -> None:
    """A removal below the pinned pages leaves the pin as it is."""
    world = world_of("abcd", "abx")
    pin(world, "p", "ab")
    world.evict_prefix("abc")
    world.evict_prefix("abx")
    assert (names(world), letters_held(world, "p")) == (["p"], 2)
    world.laws.check()


def test_a_lease_s_hold_outlives_a_named_one() -> None:
    """The lease's part of a removed path that both held is detached, and the rest goes."""
    world = world_of("abcd")
    pin(world, "p", "abcd")
    world.worker.match("ab", 1)
    assert world.evict_prefix("a") == (2, 2)
    assert names(world) == []
    world.laws.check()
    world.worker.release(1)
    assert world.states() == {"FREE": 8}


def test_a_pin_outlives_leases_and_splits() -> None:
    """No lease owns it: with all leases gone it holds its path, however the tree is cut."""
    world = world_of("abcd")
    pin(world, "p", "abc")
    pin(world, "q", "abcd")
    world.worker.publish("abx", "aq")
    world.cache.process_died(world.worker.process_id, world.now)
    world.laws.check()
    assert [letters_held(world, name) for name in ("p", "q")] == [3, 4]


def test_a_pin_is_no_use_of_the_pages() -> None:
    """Neither recency nor statistics change by pinning."""
    world = world_of("abcd")
    before, counters = picture(world.namespace.index), world.cache.counters.copy()
    pin(world, "p", "abc")
    world.cache.unpin_prefix(OWNER, NAMESPACE_ID, "p")
    assert picture(world.namespace.index) == before
    assert world.cache.counters == counters


def test_a_partial_page_is_not_pinned() -> None:
    """A pin ends with the whole pages, whatever follows; that may be superseded and evicted."""
    world = world_of(slots=6)
    cache, caller, now = world.cache, world.worker.caller, world.now
    layout = PageLayout(2, 64, 1, OpaqueContent(b"by token", divides_by_token=True))
    cache.open_namespace(caller, NamespaceIdentity(b"other"), layout, b"by token", now)
    for reservation_id, letters in ((1, "ab"), (2, "abc")):
        cache.reserve(caller, b"by token", [ReservationRequest(reservation_id, 0, 3)], now)
        tokens = paged(letters) + (FILLER if letters == "ab" else b"")
        cache.insert(caller, reservation_id, Sequence(tokens), now)
        cache.abort(caller, [reservation_id], now)
        request = NamedPinRequest(letters, tokens, require_all=True)
        pinned = cache.pin_prefix(OWNER, b"by token", request, now)
        assert pinned == 2 * len(letters)
        world.laws.check()
    assert [pin.name for pin in cache.visible_named_pins(OWNER, b"by token")] == ["ab", "abc"]
    assert world.states() == {"FREE": 3, "CACHED": 3}
