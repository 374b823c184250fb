"""A corrupt page that much continues: nobody finds it, and what is below leaves in parts."""

import pytest

from core.core_builders import NAMESPACE_ID, OWNER, CoreWorld, paged
from core.disk_world import DiskWorld
from core.tiered_world import make, move
from core.verify_calls import ask, conclude, found_bad, publish
from kvstore.core.cache_state import WORK_AT_ONCE
from kvstore.core.index.node import Node
from kvstore.core.index.radix import RadixIndex
from kvstore.core.index.removal import NODE_WORK, work_of
from kvstore.core.invariants.check import Invariants
from kvstore.core.values.page_hash import page_digests
from kvstore.core.values.requests import (
    GroupInsert,
    GroupWindow,
    MatchOptions,
    NamedPinRequest,
    Sequence,
    SlotMoves,
)
from kvstore.errors import ParentDetached
from recoveries.world import JournaledWorld

# A comb below the page that is found corrupt, and what stays beside it.
BELOW = ("abc", "abd", "abe1", "abe2")
CORRUPT = ("ab", *BELOW)
KEPT = "ax"


def fill(world: CoreWorld, *sequences: str) -> None:
    """Publishes sequences and what stays, and holds nothing of them."""
    for number, letters in enumerate((*sequences, KEPT), start=900):
        publish(world.worker, letters, number)


def condemn(
    world: CoreWorld, letters: str = "ab", bad: str = "b", *, most: int = NODE_WORK
) -> None:
    """Finds a cached page corrupt, by a match of a sequence."""
    world.cache.state.work_at_once = most
    _, inspection = ask(world.worker, letters, 800)
    assert not conclude(world.worker, inspection, bad)
    world.laws.check()


def remove_all(world: CoreWorld) -> int:
    """Removes all condemned pages; returns in how many parts."""
    parts = 0
    while world.cache.remove_condemned():
        parts += 1
        world.laws.check()
    assert not world.cache.state.condemned
    return parts


def test_no_step_removes_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the one that finds the page, nor any other, however much continues it."""
    world = CoreWorld(slots=600)
    for number in range(300):
        publish(world.worker, "ab" + chr(1000 + number), 900 + number)
    works: list[int] = []
    detach = RadixIndex.detach

    def count(index: RadixIndex, node: Node) -> list[Node]:
        works[-1] += work_of(node)
        return detach(index, node)

    monkeypatch.setattr(RadixIndex, "detach", count)
    _, inspection = ask(world.worker, "ab")
    works.append(0)
    assert not conclude(world.worker, inspection, "b")
    assert works == [0]
    more = True
    while more:
        works.append(0)
        more = world.cache.remove_condemned()
    assert max(works) <= WORK_AT_ONCE
    assert world.cache.counters.removed_page_count == 301
    assert world.states() == {"FREE": 599, "CACHED": 1}
    world.laws.check()


def test_little_goes_at_once() -> None:
    """There is nothing left to do then."""
    world = CoreWorld(slots=24)
    fill(world, *CORRUPT)
    condemn(world, most=WORK_AT_ONCE)
    assert world.shape() == {"a": {"x": {}}} or world.shape() == {"ax": {}}
    assert not world.cache.remove_condemned()


def test_nobody_finds_what_is_condemned() -> None:
    """A match ends above it from the first moment, whatever follows; so does each look."""
    world = CoreWorld(slots=24)
    fill(world, *CORRUPT)
    condemn(world)
    for number, letters in enumerate(CORRUPT, start=1):
        assert world.worker.match(letters, number).matched_token_count == 2
        found = world.cache.peek(OWNER, NAMESPACE_ID, paged(letters), world.now)
        assert found.matched_token_count == 2
    assert world.worker.match(KEPT, 9).matched_token_count == 4
    assert world.evict_prefix("abc") == (0, 0)
    assert remove_all(world) > 1
    assert world.states() == {"FREE": 22, "CACHED": 2}


@pytest.mark.parametrize("first", [True, False])
def test_the_same_tokens_may_come_again(*, first: bool) -> None:
    """They are other pages, beside those that leave, and stay."""
    world = CoreWorld(slots=24)
    fill(world, *CORRUPT)
    condemn(world)
    if first:
        world.cache.remove_condemned()
    world.worker.publish("abc", "abe3")
    world.laws.check()
    remove_all(world)
    for number, letters in enumerate(("abc", "abe3"), start=1):
        assert world.worker.match(letters, number).matched_token_count == 2 * len(letters)
    assert world.worker.match("abd", 3).matched_token_count == 4
    assert world.cache.counters.removed_page_count == 6
    assert world.states() == {"FREE": 18, "CACHED": 6}


def test_next_tokens_of_a_page_in_its_place_stay() -> None:
    """Those that were computed on the corrupt page went at once."""
    world = CoreWorld(slots=24, page_tokens=4, divides_by_token=True)
    part = paged("ab", 4)[:-8]

    def store(number: int, token: int) -> None:
        world.worker.reserve(number, 2)
        for tokens, next_token in ((paged("ab", 4), None), (part, token)):
            world.cache.insert(
                world.worker.caller, number, Sequence(tokens), world.now, next_token=next_token
            )
        world.worker.abort(number)

    def stored() -> int | None:
        at = world.namespace.index.descend(
            world.worker.lease.pins[500].position_at(0), paged("a", 4), 1
        )
        return at.find_next_token(part[16:])

    fill(world, *CORRUPT)
    condemn(world)
    world.worker.match("ax", 500)
    assert stored() is None
    store(1, 7)
    assert stored() == 7
    remove_all(world)
    assert stored() == 7


def test_holds_keep_their_pages() -> None:
    """Nothing can be published on them; they are detached part by part, and go at the release."""
    world = CoreWorld(slots=24)
    fill(world, *CORRUPT)
    world.worker.match("abe1", 1)
    world.worker.reserve(2, 1, start=4)
    slots = list(world.worker.lease.pins[1].slots())
    request = NamedPinRequest("kept", paged("abd"))
    world.cache.pin_prefix(OWNER, NAMESPACE_ID, request, world.now)
    condemn(world)
    with pytest.raises(ParentDetached):
        world.worker.insert(2, "z", 4, base_pin_id=1)
    assert world.worker.match("z", 3, 4, base_pin_id=1).matched_token_count == 2
    world.worker.release(3)
    remove_all(world)
    assert list(world.worker.lease.pins[1].slots()) == slots
    assert not world.cache.state.named_pins.of(world.namespace)
    assert world.states()["DETACHED"] == 3
    world.worker.release(1)
    world.worker.abort(2)
    world.laws.check()
    assert world.states() == {"FREE": 22, "CACHED": 2}


def test_who_waits_for_an_answer_asks_again() -> None:
    """An answer with a condemned page is not given, though nobody detached it yet."""
    world = CoreWorld(slots=24)
    other = world.join("other")
    fill(world, *CORRUPT)
    _, second = ask(other, "abd")
    condemn(world)
    assert found_bad(second, "b")
    assert world.cache.remove_corrupt(second, found_bad(second, "b"), 3) == []
    assert not world.cache.settle(second, ())
    assert world.cache.counters.corrupt_page_count == 1
    remove_all(world)


def test_condemned_pages_may_be_evicted() -> None:
    """From the tails, as any others, up to the corrupt page itself."""
    world = CoreWorld(slots=9)
    fill(world, *CORRUPT)
    condemn(world)
    assert world.states() == {"FREE": 1, "CACHED": 8}
    world.worker.match(KEPT, 1)
    world.worker.reserve(2, 7)
    world.laws.check()
    assert not world.namespace.condemned
    assert remove_all(world) == 0
    assert world.cache.counters.removed_page_count == 0


def test_what_is_above_may_be_removed_meanwhile() -> None:
    """Held pages below then wait for their release, and nothing is left of them after it."""
    world = CoreWorld(slots=24)
    fill(world, *CORRUPT)
    world.worker.match("abe1", 1)
    condemn(world)
    world.evict_prefix("a")
    world.laws.check()
    assert world.states() == {"FREE": 20, "DETACHED": 4}
    assert remove_all(world) == 0
    world.worker.release(1)
    assert world.states() == {"FREE": 24}
    assert not world.namespace.condemned
    world.laws.check()


def test_its_namespace_may_be_deleted_meanwhile() -> None:
    """Then nothing is left to remove."""
    world = CoreWorld(slots=24)
    fill(world, *CORRUPT)
    condemn(world)
    arena = world.arena
    world.cache.delete_namespace(OWNER, NAMESPACE_ID)
    assert remove_all(world) == 0
    assert arena.free_count == 24


def test_a_page_above_may_be_found_corrupt_too() -> None:
    """Both leave, with all that is below either."""
    world = CoreWorld(slots=24)
    fill(world, *CORRUPT)
    condemn(world)
    other = world.join("other")
    _, inspection = ask(other, "ax")
    assert not conclude(other, inspection, "a")
    assert world.worker.match("ax", 1).matched_token_count == 0
    remove_all(world)
    assert world.states() == {"FREE": 24}


def test_a_long_leaf_is_cut() -> None:
    """The part that is left of it stays condemned."""
    world = CoreWorld(slots=40)
    fill(world, "abcdefghijklmnopqrstuvwyz")
    condemn(world, most=NODE_WORK + 4)
    for number in range(1, 1 + 25):
        if not world.cache.remove_condemned():
            break
        assert world.worker.match("abcd", number).matched_token_count == 2
        world.laws.check()
    assert world.states() == {"FREE": 38, "CACHED": 2}


def test_a_crash_between_two_parts_brings_nothing_back() -> None:
    """The first write names the page: a recovery has nothing that continues it."""
    world = JournaledWorld(slots=24)
    fill(world, *CORRUPT)
    world.worker.match("abe1", 1)
    condemn(world)
    assert world.cache.remove_condemned()
    world.worker.publish("abc")
    world.restart()
    assert world.shape() == {"a": {"bc": {}, "x": {}}}
    assert world.states() == {"FREE": 17, "CACHED": 4, "DETACHED": 3}
    Invariants(world.cache).check()


def test_no_page_store_gets_condemned_pages() -> None:
    """Neither a write under way nor a later one keeps them, and no read goes on below them."""
    world = DiskWorld(slots=40)
    fill(world, *CORRUPT)
    [write, *_] = writes = world.cache.plan_writes(2)
    condemn(world)
    assert world.cache.write_is_stale(write)
    world.cache.finish_writes(writes, [None])
    world.tell()
    world.write_touched()
    namespace = world.namespace
    kept = page_digests(namespace.digest, paged(KEPT), namespace.width)
    assert set(world.disk) <= set(kept)
    assert remove_all(world) > 1
    assert world.write_touched() == 0


def test_condemned_pages_do_not_move_down() -> None:
    """A tier below gets no copy of them."""
    world = make(slots=24)
    fill(world, *CORRUPT)
    condemn(world)
    assert move(world) == 2
    remove_all(world)
    assert move(world) == 0


def test_a_corrupt_page_of_a_group_condemns_what_follows() -> None:
    """All pages of the path after it, beyond those of one step."""
    world = CoreWorld(slots=40)
    world.worker.reserve(50, 2)
    world.worker.insert(60, "a", moves=SlotMoves(50, [0], [GroupInsert(1, [0], [1], [12])]))
    world.worker.abort(50, 60)
    world.worker.publish(*CORRUPT, "ac1", "ad1")
    world.cache.state.work_at_once = NODE_WORK + 2
    options = MatchOptions(1, groups=(GroupWindow(1, 1),))
    asked = world.worker.sequence("a"), options, world.now
    _, checks = world.cache.match_with_checks(world.worker.caller, NAMESPACE_ID, *asked, range)
    assert checks is not None
    assert world.cache.remove_corrupt(checks, checks.pages, 1) == checks.pages
    assert not world.cache.settle(checks, checks.pages)
    world.laws.check()
    assert world.cache.remove_corrupt(checks, checks.pages, 1) == []
    for number, letters in enumerate(("abc", "ac1", "ad1"), start=2):
        assert world.worker.match(letters, number).matched_token_count == 2
    assert remove_all(world) > 1
    world.laws.check()
    assert world.states() == {"FREE": 39, "CACHED": 1}
