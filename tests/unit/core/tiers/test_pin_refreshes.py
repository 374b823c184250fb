"""Refreshes of named pins: their pages slice by slice, and what a page store lacks of them."""

from itertools import chain

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.core_builders import NAMESPACE_ID, OWNER, node_at, paged
from core.disk_world import DiskWorld
from core.pinned_world import pin
from kvstore.core.index.node import Position
from kvstore.core.index.path_hashes import kept_end
from kvstore.core.leases.named_pins import NamedPin
from kvstore.core.stats import named_pin_stats
from kvstore.core.values.page_hash import page_digests

FAR = 1
LETTERS = "ab"


@pytest.fixture
def world() -> DiskWorld:
    """Provides a world with two page stores, and one prompt."""
    world = DiskWorld(slots=16, page_stores=2)
    world.worker.publish("abcdef")
    return world


def the_pin(world: DiskWorld, name: str = "p") -> NamedPin:
    """Returns a named pin."""
    return next(each for each in world.cache.all_named_pins() if each.name == name)


def keep(world: DiskWorld, number: int) -> None:
    """Writes everything that was touched to a page store."""
    writes = world.cache.plan_writes(100, number=number)
    world.cache.finish_writes(writes, [world.write(each) for each in writes])


def kept(world: DiskWorld, letters: str) -> list[int]:
    """Returns how many pages of a path each page store is known to have."""
    node = node_at(world.namespace.index, letters)
    return [kept_end(Position(node, len(letters) - node.start), number) for number in (0, FAR)]


def slices(world: DiskWorld, of: NamedPin, most: int) -> list[list[bytes]]:
    """Returns the digests of a pin's pages, slice by slice."""
    found, start = [], 0
    while (part := world.cache.plan_refresh(of, start, most)) is not None:
        assert (part.pin, part.start) == (of, start)
        assert part.end - start <= most
        found.append([part.digests.name(end).digest for end in range(start + 1, part.end + 1)])
        world.cache.finish_slice(part)
        start = part.end
    world.laws.check()
    return found


def test_a_pin_s_pages_come_in_slices(world: DiskWorld) -> None:
    """Those that it holds, also after another prompt divided its node."""
    pin(world, "p", "abcde")
    world.worker.publish("abx")
    chain = list(page_digests(world.namespace.digest, paged("abcde"), 8))
    assert slices(world, the_pin(world), 2) == [chain[:2], chain[2:4], chain[4:]]
    assert slices(world, the_pin(world), 9) == [chain]


def test_absent_pages_are_offered_again(world: DiskWorld) -> None:
    """From the first one on, and only to the page store that lacks them."""
    pin(world, "p", "abcdef")
    for number in (0, FAR):
        keep(world, number)
    assert kept(world, "abcdef") == [6, 6]
    world.cache.finish_refresh(the_pin(world), 6, None, FAR)
    assert not world.cache.writes_wanted(FAR)
    world.cache.finish_refresh(the_pin(world), 3, 4, FAR)
    assert not world.cache.writes_wanted(0)
    assert kept(world, "abcdef") == [6, 0]
    [write] = world.cache.plan_writes(100, number=FAR)
    assert [each.end for each in write.pages] == [5, 6]
    world.cache.finish_writes([write], [0])
    stats = named_pin_stats(the_pin(world), world.now)
    assert (stats.remote_token_count, stats.pinned_token_count) == (6, 12)
    world.laws.check()


def test_pages_that_were_never_kept_lose_nothing(world: DiskWorld) -> None:
    """They are offered, and what is known of the others stays."""
    world.worker.publish("xy")
    keep(world, FAR)
    world.worker.publish("abcdefgh")
    pin(world, "p", "abcdefgh")
    refused = world.cache.plan_writes(100, number=FAR)
    world.cache.finish_writes(refused, [0] * len(refused))
    world.cache.finish_refresh(the_pin(world), 6, 6, FAR)
    assert kept(world, "abcdefgh")[FAR] == 6
    assert kept(world, "xy")[FAR] == 2
    [write] = world.cache.plan_writes(100, number=FAR)
    assert [each.end for each in write.pages] == [7, 8]
    world.cache.finish_writes([write], [0])


def test_a_pin_that_ended_is_refreshed_no_more(world: DiskWorld) -> None:
    """By an unpin, by its time, or by a removal, also while a slice is under way."""
    for number, end in enumerate(
        (
            lambda: world.cache.unpin_prefix(OWNER, NAMESPACE_ID, "p"),
            lambda: world.cache.expire_named_pins(world.now + 100.0),
            lambda: world.cache.evict_prefix(OWNER, NAMESPACE_ID, paged("ab")),
        )
    ):
        assert pin(world, "p", "abcd", ttl=50.0) == 4, number
        ended = the_pin(world)
        part = world.cache.plan_refresh(ended, 0, 2)
        assert part is not None
        part.digests.through(part.end)
        end()
        assert world.cache.all_named_pins() == []
        world.cache.finish_slice(part)
        assert world.cache.plan_refresh(ended, 2, 2) is None
        keep(world, FAR)
        world.cache.finish_refresh(ended, 0, 0, FAR)
        assert not world.cache.writes_wanted(FAR)
        world.laws.check()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=5),
    pinned=st.lists(st.text(LETTERS, min_size=1, max_size=8), min_size=1, max_size=4),
    kept_pages=st.integers(0, 20),
    lost=st.lists(st.booleans(), min_size=8, max_size=8),
    most=st.integers(1, 9),
)
def test_after_a_refresh_a_page_store_has_every_pinned_page(
    prompts: list[str], pinned: list[str], kept_pages: int, lost: list[bool], most: int
) -> None:
    """A naive walk of the prompt says which, for any loss and with slices of any size."""
    world = DiskWorld(slots=64, page_stores=2)
    world.worker.publish(*prompts)
    writes = world.cache.plan_writes(kept_pages, number=FAR)
    world.cache.finish_writes(writes, [world.write(each) for each in writes])
    # The touches that are left are dropped, as they are when too many wait.
    world.disk_state.touches[FAR].clear()
    cached = {each[:end] for each in prompts for end in range(1, len(each) + 1)}
    for number, letters in enumerate(pinned):
        held = pin(world, f"p{number}", letters)
        # The naive model: the longest beginning that some prompt has.
        assert held == max(
            end for end in range(len(letters) + 1) if not end or letters[:end] in cached
        )
    for each in world.cache.all_named_pins():
        letters = pinned[int(each.name[1:])][: each.held_end]
        digests = list(page_digests(world.namespace.digest, paged(letters), 8))
        assert list(chain.from_iterable(slices(world, each, most))) == digests
        for page, is_lost in zip(digests, lost, strict=False):
            if is_lost:
                world.disk.pop(page, None)
        there = [page in world.disk for page in digests]
        absent = there.index(False) if False in there else None
        world.cache.finish_refresh(each, len(digests) if absent is None else absent, absent, FAR)
        for write in (writes := world.cache.plan_writes(100, number=FAR)):
            world.write(write)
        world.cache.finish_writes(writes, [write.held_end for write in writes])
        world.laws.check()
        assert all(page in world.disk for page in digests)
        assert each.stored_end == (len(digests) if absent is None else absent)
