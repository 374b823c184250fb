"""The last use of each page of a node, against a table with a row a page."""

from random import Random

from core.core_builders import make_namespace, node_at, plant
from kvstore.core.index.node import Node
from kvstore.core.index.usage import (
    Step,
    Tail,
    begin_pages,
    cut_uses,
    divide_uses,
    inherit_uses,
    join_uses,
    note_use,
    tail_of,
)
from kvstore.core.values.requests import NO_HINT, ExpectedReuse, Hint

ONE_SHOT = Hint(ExpectedReuse.ONE_SHOT)
Row = tuple[int, int, Hint]


def make(letters: str = "abcdef", last_use: int = 1) -> Node:
    """Returns a leaf of one page a letter, used once."""
    return plant(make_namespace(), letters, last_use).node


def rows(node: Node, pages: int) -> list[Row]:
    """Returns last use, hits and hint of each of a node's first pages."""
    tails = [tail_of(node, end) for end in range(1, pages + 1)]
    return [(tail.last_use, tail.hits, tail.hint) for tail in tails]


def test_a_node_used_whole_has_one_tail() -> None:
    """Without steps all pages are alike, however many are asked about."""
    node = make()
    note_use(node, 6, 5, hits=1)
    assert node.steps is None
    assert tail_of(node, 6) == Tail(0, 6, 5, 1, NO_HINT)
    assert tail_of(node, 2) == Tail(0, 2, 5, 1, NO_HINT)


def test_a_use_that_ends_inside_leaves_the_tail_as_it_was() -> None:
    """The pages above its end are younger and more asked for than those below."""
    node = make()
    note_use(node, 2, 7, hits=1)
    note_use(node, 2, 8, hits=1)
    note_use(node, 4, 6, hits=1)
    assert tail_of(node, 6) == Tail(4, 6, 1, 0, NO_HINT)
    assert tail_of(node, 4) == Tail(2, 4, 6, 1, NO_HINT)
    assert tail_of(node, 2) == Tail(0, 2, 8, 3, NO_HINT)


def test_new_pages_were_asked_for_by_nobody() -> None:
    """A leaf that was hit and grows has an unhit tail; one that was not stays of one piece."""
    namespace = make_namespace()
    node = plant(namespace, "ab", 3).node
    note_use(node, 2, 3, hits=1)
    plant(namespace, "abcd", 4)
    plant(namespace, "abcde", 5)
    assert node_at(namespace.index, "abcde") is node
    assert tail_of(node, 5) == Tail(2, 5, 5, 0, NO_HINT)
    assert tail_of(node, 2) == Tail(0, 2, 5, 1, NO_HINT)


def test_a_hint_is_of_its_pages_alone() -> None:
    """Pages that begin with another hint are a tail of their own, and keep it when cut."""
    node = make()
    begin_pages(node, 0, ONE_SHOT)
    begin_pages(node, 3, NO_HINT)
    note_use(node, 1, 9)
    assert [row[2] for row in rows(node, 6)] == [ONE_SHOT] * 3 + [NO_HINT] * 3
    cut_uses(node, 3)
    assert node.hint is ONE_SHOT
    assert node.steps == [Step(1, 9, 0, ONE_SHOT)]


def test_what_is_cut_ends_above() -> None:
    """A cut tail's uses are those of what is left; of nothing left they can be inherited."""
    node = make()
    note_use(node, 2, 7, hits=1)
    note_use(node, 6, 4, hits=1)
    cut_uses(node, 4)
    assert (node.last_use, node.hits, node.steps) == (4, 1, [Step(2, 7, 1, NO_HINT)])
    cut_uses(node, 0)
    assert (node.last_use, node.hits, node.steps) == (7, 2, None)
    parent = make("x", 1)
    inherit_uses(parent, node)
    assert (parent.last_use, parent.hits) == (7, 2)


def test_divided_and_joined_again_pages_are_as_before() -> None:
    """For random uses and hints, a division at any page loses nothing, nor does its undoing."""
    random = Random(5)
    for _ in range(200):
        node = make()
        for start in sorted(random.sample(range(6), random.randint(0, 3))):
            begin_pages(node, start, random.choice([NO_HINT, ONE_SHOT]))
        for now in range(2, 2 + random.randint(0, 5)):
            note_use(node, random.randint(1, 6), now, hits=random.randint(0, 1))
        before, pages = rows(node, 6), random.randint(1, 5)
        upper = make("u" * pages, 0)
        divide_uses(upper, node, pages)
        below = rows(node, 6 - pages)
        assert below == before[pages:]
        last_use, hits = below[0][:2]
        above = [(max(use, last_use), n + hits, hint) for use, n, hint in rows(upper, pages)]
        assert above == before[:pages]
        join_uses(upper, pages, node)
        assert rows(node, 6) == before


def test_a_joint_without_a_trace_is_no_step() -> None:
    """A joined node is of one piece if its upper and lower part are alike."""
    upper, node = make("ab", 1), make("cd", 2)
    join_uses(upper, 2, node)
    assert node.steps is None
