"""Finding the cached prefix of a sequence for a lease."""

import pytest

from core.core_builders import NAMESPACE_ID, CoreWorld, make_layout, node_at, paged, picture
from kvstore.core.index.node import Position
from kvstore.core.leases.holds import covered_position
from kvstore.core.values.layout import NamespaceIdentity
from kvstore.core.values.requests import Sequence
from kvstore.core.verbs.lookup import Found, longest, matchable_pages
from kvstore.errors import (
    InvalidField,
    ParentNotCovered,
    PinNotFound,
    ReservationNotFound,
    Tombstoned,
)


def find(world: CoreWorld, letters: str, page: int = 0, **base: int) -> Position:
    """Returns the longest prefix of whole pages for the world's worker."""
    sequence = world.worker.sequence(letters, page, **base)
    found = longest(
        world.worker.lease, world.namespace, sequence, wants_source=False, wants_next_token=False
    )
    assert found == Found(found.at)
    return found.at


@pytest.mark.parametrize("page_tokens", [1, 2, 16])
def test_pitfall_rounding_up(page_tokens: int) -> None:
    """However long the sequence, what may match is whole pages of all tokens but the last."""
    for count in range(5 * page_tokens + 2):
        matchable = matchable_pages(count, page_tokens) * page_tokens
        assert 0 <= matchable <= max(count - 1, 0)
        assert matchable + page_tokens > count - 1


def test_a_sequence_of_whole_pages_keeps_its_last_page_for_the_engine() -> None:
    """A sequence of exactly n pages may match n - 1; with one token more, n."""
    assert matchable_pages(48, 16) == 2
    assert matchable_pages(49, 16) == 3


def test_nothing_may_match_of_nothing() -> None:
    """An empty sequence has no matchable page."""
    assert matchable_pages(0, 1) == 0


@pytest.mark.parametrize("page_tokens", [1, 2, 16])
def test_positions_are_page_aligned(page_tokens: int) -> None:
    """A position in tokens is one in pages, or is refused by its value."""
    namespace = CoreWorld(page_tokens=page_tokens).namespace
    for position in range(3 * page_tokens):
        if position % page_tokens == 0:
            assert namespace.page_position(position) == position // page_tokens
            continue
        with pytest.raises(InvalidField) as error:
            namespace.page_position(position)
        assert error.value.metadata["value"] == str(position)


def test_a_base_is_the_pin_or_reservation_named() -> None:
    """A sequence names a pin, a reservation, or nothing."""
    world = CoreWorld()
    world.worker.publish("a")
    world.worker.match("a", 1)
    world.worker.reserve(1, 2)
    lease, namespace = world.worker.lease, world.namespace
    assert lease.base_of(namespace, Sequence(b"")) is None
    assert lease.base_of(namespace, Sequence(b"", base_pin_id=1)) is lease.pins[1]
    reservation = lease.base_of(namespace, Sequence(b"", base_reservation_id=1))
    assert reservation is lease.reservations[1]


def test_a_base_has_to_be_there() -> None:
    """A pin or reservation that the lease does not have is named in the error."""
    world = CoreWorld()
    lease, namespace = world.worker.lease, world.namespace
    with pytest.raises(PinNotFound):
        lease.base_of(namespace, Sequence(b"", base_pin_id=1))
    with pytest.raises(ReservationNotFound):
        lease.base_of(namespace, Sequence(b"", base_reservation_id=1))
    world.worker.abort(1)
    with pytest.raises(Tombstoned):
        lease.base_of(namespace, Sequence(b"", base_reservation_id=1))


def test_a_base_belongs_to_the_namespace() -> None:
    """A pin on another namespace's path covers nothing in this one."""
    world = CoreWorld()
    world.worker.publish("a")
    world.worker.match("a", 1)
    identity = NamespaceIdentity(b"another model")
    other = world.cache.open_namespace(
        world.worker.caller, identity, make_layout(), b"other", world.now
    )
    with pytest.raises(InvalidField) as error:
        world.worker.lease.base_of(other, Sequence(b"", base_pin_id=1))
    assert error.value.metadata["field"] == "base"


def test_without_a_base_only_the_beginning_is_covered() -> None:
    """Depth 0 is the root; anything deeper is not covered."""
    namespace = CoreWorld().namespace
    assert covered_position(namespace, None, 0) == Position(namespace.index.root, 0)
    with pytest.raises(ParentNotCovered) as error:
        covered_position(namespace, None, 1)
    assert error.value.metadata == {"page_position": "1", "covered": "0"}


def test_a_base_covers_its_path_and_no_more() -> None:
    """Every place of the held path is covered, one page further is not."""
    world = CoreWorld()
    world.worker.publish("abcd")
    world.worker.match("abc", 1)
    pin = world.worker.lease.pins[1]
    for depth in range(4):
        assert covered_position(world.namespace, pin, depth).depth == depth
    with pytest.raises(ParentNotCovered) as error:
        covered_position(world.namespace, pin, 4)
    assert error.value.metadata == {"page_position": "4", "covered": "3"}


def test_the_longest_prefix_is_bounded_by_what_may_match() -> None:
    """However much is cached, less than the whole sequence is found."""
    world = CoreWorld()
    world.worker.publish("abcd")
    lease, namespace = world.worker.lease, world.namespace
    options = {"wants_source": False, "wants_next_token": True}
    for pages in range(1, 5):
        whole = Sequence(paged("abcd"[:pages]))
        assert longest(lease, namespace, whole, **options).at.depth == pages - 1
    assert longest(lease, namespace, Sequence(b""), **options).at.depth == 0
    assert find(world, "abxx").depth == 2
    assert find(world, "x").depth == 0


def test_a_base_stands_for_what_lies_before() -> None:
    """From a base's place on only the rest of the tokens is compared."""
    world = CoreWorld()
    world.worker.publish("abcdef", "abcxy")
    world.worker.match("abc", 1)
    assert find(world, "def", 3, base_pin_id=1).depth == 6
    assert find(world, "xq", 3, base_pin_id=1).depth == 4
    assert find(world, "cd", 2, base_pin_id=1).depth == 4
    assert find(world, "q", 1, base_pin_id=1).depth == 1


def test_a_base_deeper_than_what_may_match_is_cut() -> None:
    """The answer is the upper part of a base that reaches beyond what may match."""
    world = CoreWorld()
    world.worker.publish("abcd")
    world.worker.match("abcd", 1)
    empty = Sequence(b"", 4 * world.page_tokens, base_pin_id=1)
    lease, namespace = world.worker.lease, world.namespace
    found = longest(lease, namespace, empty, wants_source=True, wants_next_token=True)
    # The tokens that a source page would be found by were not sent.
    assert found == Found(Position(node_at(namespace.index, "abcd"), 3))


def test_of_a_removed_base_only_the_rest_counts() -> None:
    """The answer ends with the part of the base's path that the index still has."""
    world = CoreWorld()
    world.worker.publish("abcdef")
    world.worker.match("abcdef", 1)
    world.evict_prefix("abcd")
    assert find(world, "x", 6, base_pin_id=1).depth == 3
    assert find(world, "x", 4, base_pin_id=1).depth == 3
    assert find(world, "cx", 2, base_pin_id=1).depth == 3


def test_of_a_base_removed_whole_nothing_counts() -> None:
    """The answer is a miss if no page of the base's path is in the index."""
    world = CoreWorld()
    world.worker.publish("abc")
    world.worker.match("abc", 1)
    world.evict_prefix("a")
    assert find(world, "x", 3, base_pin_id=1) == Position(world.namespace.index.root, 0)


def test_a_path_ends_before_what_was_not_mapped() -> None:
    """A process that has not mapped an extent shortens the path to the pages before it."""
    world = CoreWorld(slots=3)
    world.cache.add_extent(1, 2, 8)
    other = world.join("other")
    other.publish("abcdef")
    assert [slot >> 32 for slot in node_at(world.namespace.index, "abcdef").slots] == [
        *(1, 1, 1, 2, 2, 2)
    ]
    assert find(world, "abcdef").depth == 3
    assert find(world, "ab").depth == 2
    world.worker.map_memory()
    assert find(world, "abcdef").depth == 6


def test_a_path_that_begins_unmapped_is_a_miss() -> None:
    """Nothing matches if the first page was not mapped."""
    world = CoreWorld()
    world.worker.publish("ab")
    world.cache.bind(world.worker.caller, process_id=50, pid=1, uid=1)
    assert find(world, "ab").depth == 0


def test_finding_changes_nothing() -> None:
    """Looking up leaves tree, counters, holds and recency as they were."""
    world = CoreWorld()
    world.worker.publish("abcd", "abxy")
    world.worker.match("abc", 1)
    world.evict_prefix("abc")
    index = world.cache.namespaces[NAMESPACE_ID].index
    uses = {number: (node.last_use, node.hits) for number, node in index.nodes.items()}
    before, counters = picture(index), world.cache.counters.copy()
    for letters in ("", "ab", "abxyz", "q"):
        find(world, letters)
    find(world, "c", 2, base_pin_id=1)
    assert picture(index) == before
    assert {n: (node.last_use, node.hits) for n, node in index.nodes.items()} == uses
    assert world.cache.counters == counters
