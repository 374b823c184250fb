"""The radix tree for an operator: whole, in part, and as text."""

import io

import pytest
from rich.console import Console

from kvstore.v1 import store_pb2
from kvstore_ctl.commands.tree import TreeView, prefix_tree

SPACE = store_pb2.NamespaceInfo(
    namespace_id=b"\xab", cached_page_count=4, layout={"page_tokens": 2}
)


def lines(prefixes: list[store_pb2.PrefixInfo], view: TreeView | None = None) -> list[str]:
    """Returns the lines on a terminal."""
    console = Console(file=io.StringIO(), width=260)
    console.print(prefix_tree(SPACE, prefixes, view or TreeView()))
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def node(number: int, parent: int, start: int, hits: int = 0) -> store_pb2.PrefixInfo:
    """Returns a node of one full page."""
    return store_pb2.PrefixInfo(
        node_id=number,
        parent_node_id=parent,
        start_page=start,
        page_count=1,
        token_count=2,
        hit_count=hits,
    )


FAMILY = [node(1, 0, 0), node(2, 1, 1, hits=1), node(3, 1, 1, hits=9), node(4, 1, 1, hits=4)]
FAMILY += [node(5, 3, 2), node(6, 2, 2), node(7, 6, 3)]


def test_a_tree_has_children_under_their_parents() -> None:
    """Nodes are below their parents, with pins, hits and tokens, for any order of the list."""
    prefixes = [
        store_pb2.PrefixInfo(
            node_id=1, parent_node_id=2, start_page=2, page_count=1, token_count=2, pin_count=5
        ),
        store_pb2.PrefixInfo(
            node_id=2, page_count=2, token_count=4, hit_count=7, tokens=b"\1\0\0\0\2\0\0\0"
        ),
        store_pb2.PrefixInfo(
            node_id=4, parent_node_id=3, start_page=1, page_count=1, token_count=1
        ),
    ]
    assert lines(prefixes) == [
        "ab: 4 pages of 2 tokens",
        "├── pages 0-1  pins 0  hits 7  1 2 ...",
        "│   └── pages 2-2  pins 5  hits 0",
        "└── pages 1-1 (1 token)  pins 0  hits 0",
    ]


def test_a_tree_is_cut_at_its_depth() -> None:
    """Runs and pages below the shown levels are counted."""
    assert lines(FAMILY, TreeView(depth=1)) == [
        "ab: 4 pages of 2 tokens",
        "└── pages 0-0  pins 0  hits 0",
        "    └── ... 6 more runs, 6 pages",
    ]
    assert lines(FAMILY, TreeView(depth=9)) == lines(FAMILY)


def test_a_tree_keeps_the_continuations_that_are_hit() -> None:
    """Too many children are cut to those with most hits, in the original order."""
    assert lines(FAMILY, TreeView(width=2)) == [
        "ab: 4 pages of 2 tokens",
        "└── pages 0-0  pins 0  hits 0",
        "    ├── pages 1-1  pins 0  hits 9",
        "    │   └── pages 2-2  pins 0  hits 0",
        "    ├── pages 1-1  pins 0  hits 4",
        "    └── ... 3 more runs, 3 pages",
    ]


def test_a_tree_may_be_deeper_than_python_recurses() -> None:
    """A conversation of a thousand turns is a path of as many nodes."""
    path = [node(each, each - 1, each - 1) for each in range(1, 3001)]
    assert lines(path, TreeView(depth=2))[-1].endswith("... 2998 more runs, 2998 pages")


@pytest.mark.parametrize("count", [1, 2])
def test_tokens_are_shown_as_the_view_says(count: int) -> None:
    """The view's function turns the received ids into text."""
    prefix = node(1, 0, 0)
    prefix.tokens = b"".join(each.to_bytes(4, "little") for each in range(count))
    shown = lines([prefix], TreeView(text=lambda ids: f"<{len(ids)}>"))
    assert shown[1].endswith(f"<{count}> ...")


def test_matches_through_a_run_are_its_own_and_those_below() -> None:
    """A run with continuations shows its own hits and those below together."""
    family = [
        store_pb2.PrefixInfo.FromString(each.SerializeToString()) for each in reversed(FAMILY)
    ]
    for each in family:
        each.child_count = {1: 3, 2: 1, 3: 1, 6: 1}.get(each.node_id, 0)
    shown = lines(family)
    assert shown[1].endswith("hits 0  through 14")
    assert shown[2].endswith("hits 1  through 1")
    assert next(line for line in shown if "hits 9" in line).endswith("hits 9  through 9")
    assert next(line for line in shown if "hits 4" in line).endswith("hits 4")


def test_a_page_of_a_group_is_named_by_its_group() -> None:
    """Its tokens are a marker, and no text; with one token listed the group is not known."""
    marker = b"\xff\xff\xff\xff\3\0\0\0"
    prefixes = [node(1, 0, 0), node(2, 1, 1), node(3, 1, 1)]
    prefixes[1].tokens, prefixes[2].tokens = marker, marker[:4]
    assert [line.split("hits 0  ")[-1] for line in lines(prefixes)[2:]] == [
        "group 3",
        "a group's page",
    ]
