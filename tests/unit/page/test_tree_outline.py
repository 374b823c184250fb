"""A tree that is cut to a size."""

import gc
import sys
from array import array
from collections import Counter
from typing import Any

from kvstore_ctl.page.tree_outline import MAX_ABOVE, Outline

# number, parent, start, tokens, hits, holds
Row = tuple[int, int, int, int, int, int]


def outline(*rows: Row) -> Outline:
    """Returns the outline of nodes, by their numbers."""
    return Outline(array("q", [value for row in sorted(rows) for value in row]))


def look(tree: Outline, number: int = 0, *, count: int = 100, skip: int = 0) -> dict[str, Any]:
    """Returns the part of a node that exists."""
    found = tree.part(number, count=count, skip=skip)
    assert found is not None
    return found


def ids(entry: dict[str, Any]) -> dict[int, Any]:
    """Returns the nodes' numbers below an entry, as a tree."""
    return {each["id"]: ids(each) for each in entry["children"]}


FORK = (
    (1, 0, 0, 100, 2, 0),
    (2, 1, 100, 40, 1, 1),
    (3, 1, 100, 60, 0, 2),
)


def test_sums_are_over_all_below() -> None:
    """Tokens, hits and holds are summed over all nodes below."""
    root = look(outline(*FORK))
    [top] = root["children"]
    assert (root["id"], root["tokens"], root["total"], root["nodes"]) == (0, 0, 200, 3)
    assert (top["id"], top["tokens"], top["total"], top["nodes"]) == (1, 100, 200, 2)
    assert (top["hits"], top["holds"]) == (3, 3)
    assert [each["id"] for each in top["children"]] == [3, 2]
    assert (root["other"], top["other"], root["path"]) == (None, None, [])


def test_an_empty_tree_is_its_root() -> None:
    """An empty tree has no children, and nothing is left out."""
    root = look(outline())
    assert (root["children"], root["other"], root["total"], root["nodes"]) == ([], None, 0, 0)
    assert len(outline()) == 0


def test_the_largest_are_shown_and_the_rest_is_summed() -> None:
    """The largest subtrees are shown below their parents, and the rest is summed."""
    tree = outline(*((n, 0, 0, 10 * n, n, 0) for n in range(1, 21)))
    root = look(tree, count=3)
    assert [each["id"] for each in root["children"]] == [20, 19, 18]
    other = root["other"]
    assert (other["skip"], other["count"], other["total"]) == (3, 17, 10 * sum(range(18)))
    assert other["hits"] == sum(range(18))


def test_the_rest_can_be_looked_at() -> None:
    """Skipping the shown entries gives the next largest, up to the end."""
    tree = outline(*((n, 0, 0, 10 * n, 0, 0) for n in range(1, 8)))
    root = look(tree, count=3, skip=3)
    assert [each["id"] for each in root["children"]] == [4, 3, 2]
    assert (root["skipped"], root["other"]["skip"], root["other"]["count"]) == (3, 6, 1)
    last = look(tree, count=3, skip=6)
    assert ([each["id"] for each in last["children"]], last["other"]) == ([1], None)
    beyond = look(tree, count=3, skip=99)
    assert (beyond["children"], beyond["other"], beyond["skipped"]) == ([], None, 7)


def test_the_answer_is_bounded_however_large_the_tree() -> None:
    """An answer has no more nodes than requested, for a wide tree and for a deep one."""
    wide = outline(*((n, 0, 0, 16, 0, 0) for n in range(1, 3000)))
    assert len(look(wide, count=50)["children"]) == 50
    # Each has a hit of its own, so each is an entry.
    deep = outline(*((n, n - 1, 16 * (n - 1), 16, 1, 0) for n in range(1, 3000)))
    assert _size(look(deep, count=50)) == 51
    assert len(look(deep, 2999)["path"]) == MAX_ABOVE


def _size(entry: dict[str, Any]) -> int:
    return 1 + sum(_size(each) for each in entry["children"])


def test_nodes_without_a_fork_are_one() -> None:
    """A run without a fork is one entry, under its last node's number."""
    tree = outline(
        (1, 0, 0, 16, 0, 0),
        (2, 1, 16, 16, 0, 0),
        (3, 2, 32, 16, 1, 0),
        (4, 3, 48, 16, 0, 0),
        (5, 4, 64, 16, 0, 0),
        (6, 3, 48, 16, 0, 0),
    )
    root = look(tree)
    assert ids(root) == {3: {5: {}, 6: {}}}
    [run] = root["children"]
    assert (run["start"], run["tokens"], run["total"]) == (0, 48, 96)
    longest = look(tree, 5)
    assert (longest["start"], longest["tokens"]) == (48, 32)
    assert longest["path"] == [
        {"id": 0, "start": 0, "tokens": 0},
        {"id": 3, "start": 0, "tokens": 48},
    ]


def test_a_look_costs_by_what_it_shows() -> None:
    """A look's cost does not depend on the number of nodes in a run."""

    def calls(length: int) -> int:
        rows = [(n, n - 1, 16 * n, 16, 0, 0) for n in range(1, length + 1)]
        tree, counted = outline(*rows), Counter[str]()
        # A garbage collection may call its listeners at any moment.
        gc.disable()
        sys.setprofile(lambda _, kind, __: counted.update([kind]))
        try:
            look(tree)
            look(tree, length)
        finally:
            sys.setprofile(None)
            gc.enable()
        return counted.total()

    assert calls(2000) == calls(20)


def test_a_hold_ends_a_run() -> None:
    """A held part of a run is shown apart from the rest."""
    tree = outline((1, 0, 0, 16, 0, 1), (2, 1, 16, 16, 0, 0))
    assert ids(look(tree)) == {1: {2: {}}}


def test_a_node_that_is_gone_is_none() -> None:
    """A missing number gives None, between two nodes and beyond the last."""
    tree = outline(*FORK, (9, 1, 100, 1, 0, 0))
    assert tree.part(5, count=10) is None
    assert tree.part(10, count=10) is None


def test_what_hangs_on_nothing_hangs_on_the_root() -> None:
    """A node whose parent was removed during the read is shown below the root."""
    tree = outline((3, 2, 100, 40, 0, 0), (4, 3, 140, 10, 0, 0), (5, 3, 140, 5, 0, 0))
    root = look(tree)
    assert (ids(root), root["total"]) == ({3: {4: {}, 5: {}}}, 55)


def test_a_ring_harms_nothing() -> None:
    """A circle of rows, which no tree has, is shown below the root."""
    tree = outline((1, 2, 0, 10, 0, 0), (2, 1, 10, 10, 0, 0), (3, 0, 0, 5, 0, 0))
    assert {each["id"] for each in look(tree)["children"]} == {1, 2, 3}
