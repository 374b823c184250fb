"""Events of pages, leases and namespaces, each noted where it happens."""

from array import array
from collections.abc import Iterable

import pytest

from core.core_builders import (
    EPOCH,
    FILLER,
    NAMESPACE_ID,
    OWNER,
    TENANT,
    CoreWorld,
    make_layout,
    paged,
)
from core.disk_world import DiskWorld
from core.letter_world import LetterWorld
from core.tiered_world import make, move, sunk
from core.verify_calls import ask, found_bad, publish
from kvstore.core.index.hash_index import HashIndex
from kvstore.core.index.radix import RadixIndex
from kvstore.core.pool.pages import EVENT_DIGEST_BYTES
from kvstore.core.values.event_log import (
    Cause,
    Event,
    EventWatch,
    LeaseEvent,
    LeaseStep,
    NamespaceEvent,
    NamespaceStep,
    PagesChange,
    PagesEvent,
)
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.page_hash import page_digests
from kvstore.core.values.requests import Caller, MatchOptions, Sequence
from kvstore.core.values.slots import SlotState

INSERTED = ("INSERTED", "INSERTED", 1)


def told(events: Iterable[Event]) -> list[tuple[tuple[str, str, int], set[int]]]:
    """Returns what happened to pages: change, cause and tier, and the pages' numbers.

    Where an index has a node a page, what happens to a run is told page by page: one here.
    """
    found: list[tuple[tuple[str, str, int], set[int]]] = []
    for each in events:
        if isinstance(each, PagesEvent):
            kind = (each.change.name, each.cause.name, each.tier)
            pages = set(range(each.start_page, each.start_page + each.page_count))
            if found and found[-1][0] == kind and not pages & found[-1][1]:
                found[-1][1].update(pages)
            else:
                found.append((kind, pages))
    return found


def since(world: CoreWorld) -> list[tuple[tuple[str, str, int], set[int]]]:
    """Returns what happened to pages since this was asked before."""
    log = world.cache.events
    happened = told(log.recent)
    log.recent.clear()
    return happened


def watch(world: CoreWorld) -> EventWatch:
    """Watches what happens to a world's tenant."""
    watched = EventWatch(OWNER, b"", room=1000, wake=lambda: None)
    world.cache.events.begin(watched, with_history=False)
    return watched


def digest(world: CoreWorld, letters: str) -> bytes:
    """Returns the digest of the path of ``letters``."""
    tokens = paged(letters, world.page_tokens)
    width = world.namespace.index.width
    return list(page_digests(world.namespace.digest, tokens, width))[-1][:EVENT_DIGEST_BYTES]


def test_an_insert_tells_what_is_new() -> None:
    """Not what was there first; each event is of the tenant and the namespace, with its time."""
    world = CoreWorld(slots=16)
    world.worker.publish("abc")
    assert since(world) == [(INSERTED, {0, 1, 2})]
    world.now = 123.0
    world.worker.reserve(1, 5)
    world.worker.insert(1, "abcde")
    assert [each[:3] for each in world.cache.events.recent] == [(123.0, TENANT, NAMESPACE_ID)]
    assert since(world) == [(INSERTED, {3, 4})]
    world.worker.insert(1, "abcde")
    assert since(world) == []


def test_what_makes_room_is_told_as_evicted() -> None:
    """From the end of a path, before what takes its place."""
    world = CoreWorld(slots=4)
    world.worker.publish("abc")
    since(world)
    world.worker.publish("xyz")
    assert since(world) == [(("REMOVED", "EVICTED", 1), {1, 2}), (INSERTED, {0, 1, 2})]


def test_what_an_operator_removes_is_told_with_all_below() -> None:
    """Held or not: it left the index."""
    world = CoreWorld(slots=16)
    world.worker.publish("abcd", "abxy")
    world.worker.match("ab", 1)
    since(world)
    world.evict_prefix("ab")
    happened = [each for each in world.cache.events.recent if isinstance(each, PagesEvent)]
    assert {(each.change, each.cause) for each in happened} == {
        (PagesChange.REMOVED, Cause.REMOVED)
    }
    pages = [each.start_page + k for each in happened for k in range(each.page_count)]
    assert sorted(pages) == [1, 2, 2, 3, 3]
    since(world)
    world.worker.release(1)
    assert since(world) == []


def test_a_superseded_page_is_told() -> None:
    """It leaves before the fuller one comes."""
    world = LetterWorld()
    world.write("abcdef", 1)
    since(world.core)
    world.write("abcdefgh", 2)
    assert since(world.core) == [(("REMOVED", "SUPERSEDED", 1), {1}), (INSERTED, {1})]


def test_a_corrupt_page_is_told_with_all_below() -> None:
    """The pages above it stay."""
    world = CoreWorld()
    publish(world.worker, "abcd")
    _, inspection = ask(world.worker, "abcd")
    since(world)
    world.cache.remove_corrupt(inspection, found_bad(inspection, "c"), 4)
    assert since(world) == [(("REMOVED", "CORRUPT", 1), {2, 3})]


def test_what_goes_with_an_extent_is_told() -> None:
    """Also what is published into one that retires already."""
    world = CoreWorld(slots=4)
    world.worker.publish("ab")
    world.worker.reserve(1, 1)
    since(world)
    world.cache.retire_extent(1, 1)
    assert since(world) == [(("REMOVED", "RETIRED", 1), {0, 1})]
    world.worker.insert(1, "x")
    assert since(world) == [(INSERTED, {0}), (("REMOVED", "RETIRED", 1), {0})]


@pytest.mark.parametrize(
    ("index_factory", "ends"),
    [(RadixIndex, ["xy"]), (HashIndex, ["x", "xy"])],
    indirect=["index_factory"],
    ids=["radix", "hash"],
)
def test_what_goes_as_it_comes_is_told_by_the_end_of_each_run(ends: list[str]) -> None:
    """It came as one run; what goes is told node by node."""
    world = CoreWorld(slots=4)
    world.worker.reserve(1, 2)
    world.cache.retire_extent(1, 1)
    watch(world)
    world.cache.events.recent.clear()
    world.worker.insert(1, "xy")
    pages = [each for each in world.cache.events.recent if isinstance(each, PagesEvent)]
    came = [each.path_digest for each in pages if each.change is PagesChange.INSERTED]
    went = [each.path_digest for each in pages if each.change is PagesChange.REMOVED]
    assert came == [digest(world, "xy")]
    assert sorted(went) == sorted(digest(world, each) for each in ends)


def test_copies_in_tiers_are_told() -> None:
    """A copy comes beside one, one of two goes, and the last one leaves the index."""
    world = make(slots=4, lower_slots=4)
    world.worker.publish("abcd")
    since(world)
    move(world)
    assert since(world) == [
        (("COPIED", "MOVED", 2), {0, 1, 2, 3}),
        (("COPIES_REMOVED", "EVICTED", 1), {0, 1, 2, 3}),
    ]
    world.worker.publish("wxyz")
    since(world)
    move(world)
    happened = since(world)
    assert (("REMOVED", "EVICTED", 2), {0, 1, 2, 3}) in happened
    assert (("COPIED", "MOVED", 2), {0, 1, 2, 3}) in happened


def test_a_move_through_several_nodes_is_told_once() -> None:
    """The pages of one path that get their copies together are side by side."""
    world = make(slots=8, lower_slots=8)
    world.worker.publish("abcd", "abxy")
    world.cache.events.recent.clear()
    move(world)
    copied = [
        (each.start_page, each.page_count)
        for each in world.cache.events.recent
        if isinstance(each, PagesEvent) and each.change is PagesChange.COPIED
    ]
    assert sorted(copied) == [(0, 4), (2, 2)]


def test_copies_that_are_not_side_by_side_are_told_apart() -> None:
    """A page between them that another move brings ends the first run."""
    world = sunk("abcd", "abxy", promote=True)
    caller, options = world.worker.caller, MatchOptions(1)
    sequence = Sequence(paged("abcd") + FILLER)
    [moved] = world.cache.plan_promotion(caller, NAMESPACE_ID, sequence, options, 100)
    between = moved.transfers.pop(1)
    world.arena.recycle(array("Q", [between.target]), SlotState.MOVING)
    world.cache.moving.discard(between.source)
    world.cache.events.recent.clear()
    assert world.cache.finish_moves([moved]) == 3
    copied = [
        (each.start_page, each.page_count)
        for each in world.cache.events.recent
        if isinstance(each, PagesEvent)
    ]
    assert copied == [(0, 1), (2, 2)]


def test_pages_of_tier_2_that_are_removed_say_so() -> None:
    """The event of pages that leave the index names their nearest tier."""
    world = sunk("abc")
    since(world)
    world.evict_prefix("")
    assert since(world) == [(("REMOVED", "REMOVED", 2), {0, 1, 2})]


def test_a_load_is_told_as_one() -> None:
    """Pages of tier 3 come back."""
    world = DiskWorld()
    world.worker.publish("abc")
    world.write_touched()
    world.evict()
    since(world)
    assert world.read("abc") == 3
    assert since(world) == [(("INSERTED", "LOADED", 1), {0, 1, 2})]


def test_leases_and_namespaces_are_told() -> None:
    """From the grant to the end, and nothing of a grant that is repeated."""
    world = CoreWorld()
    world.cache.events.recent.clear()
    caller = Caller(OWNER, b"a lease of 16 by", b"secret", EPOCH)
    for _ in range(2):
        world.cache.grant(caller, ttl=5.0, display_name="w", features=(), now=200.0)
    world.cache.bind(caller, process_id=77, pid=77, uid=1)
    identity = NamespaceIdentity(b"new")
    for _ in range(2):
        world.cache.open_namespace(caller, identity, make_layout(), b"new", 201.0)
    world.cache.renew(world.worker.caller, 206.0)
    world.cache.expire(207.0)
    world.cache.process_died(77, 208.0)
    steps = [
        (each.at, each.step, each.namespace_id)
        for each in world.cache.events.recent
        if isinstance(each, LeaseEvent | NamespaceEvent)
    ]
    assert steps == [
        (200.0, LeaseStep.GRANTED, b""),
        (201.0, NamespaceStep.OPENED, b"new"),
        (207.0, LeaseStep.EXPIRED, b""),
        (208.0, LeaseStep.ENDED, b""),
    ]


def test_paths_are_named_while_somebody_watches() -> None:
    """By the digest of all their tokens; before and after, by nothing."""
    world = CoreWorld(slots=16)
    world.worker.publish("ab")
    watched = watch(world)
    world.worker.publish("abcd", "abx")
    world.laws.check()
    world.cache.events.end(watched)
    world.worker.publish("abcdef")
    digests = [
        each.path_digest for each in world.cache.events.recent if isinstance(each, PagesEvent)
    ]
    assert digests == [b"", digest(world, "abcd"), digest(world, "abx"), b""]
    assert [each for each in watched.take(9).events if isinstance(each, PagesEvent)] == [
        each
        for each in world.cache.events.recent
        if isinstance(each, PagesEvent) and each.path_digest
    ]


@pytest.mark.parametrize(("slots", "left"), [(6, set()), (12, {"ab"})])
def test_a_path_s_digest_is_the_same_when_it_goes(slots: int, left: set[str]) -> None:
    """Whatever became of the nodes meanwhile: cut, split, or made of two again."""
    world = CoreWorld(slots=slots)
    watched = watch(world)
    world.worker.publish("abcdef")
    world.worker.publish("abxyzw")
    world.laws.check()
    world.evict_prefix("")
    world.laws.check()
    gone = {
        each.path_digest: each.start_page + each.page_count
        for each in watched.take(1000).events
        if isinstance(each, PagesEvent) and each.change is PagesChange.REMOVED
    }
    paths = {"abcdef", "abxyzw"} | left
    assert gone == {digest(world, each): len(each) for each in paths}


@pytest.mark.parametrize("pages", [1, 4])
def test_a_partial_page_has_a_digest_of_its_own(pages: int) -> None:
    """The digest of a partial page covers the tokens that it has."""
    world = LetterWorld()
    watched = watch(world.core)
    text = "abcd" * (pages - 1) + "ab"
    world.write(text, 1)
    world.check()
    last = [each for each in watched.take(9).events if isinstance(each, PagesEvent)][-1]
    tokens = b"".join(ord(each).to_bytes(4, "little") for each in text)
    every = page_digests(world.core.namespace.digest, tokens, 16)
    assert last.path_digest == list(every)[-1][:EVENT_DIGEST_BYTES]
