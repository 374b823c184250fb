"""Jumps over many nodes of a path: a walk finds the same with them and without."""

from array import array
from random import Random

import pytest

from core.core_builders import make_namespace, paged
from kvstore.core.index.node import Position
from kvstore.core.index.radix import RadixIndex, path_slots
from kvstore.core.pool.namespace import Namespace
from kvstore.core.values.group_pages import group_marker

LETTERS = "".join(chr(ord("a") + number) for number in range(24))


class ShortJumps(RadixIndex):
    """An index whose jumps pass three nodes."""

    jump_nodes = 3


def space(index: type[RadixIndex]) -> Namespace:
    """Returns a namespace with one path, on which each page has a page of a group."""
    namespace = make_namespace(slots=256)
    namespace.index = index(namespace, 2)
    tree = namespace.index
    at = Position(tree.root, 0)
    for number, letter in enumerate(LETTERS):
        at = tree.extend(at, paged(letter), array("Q", [1 << 32 | number]))
        marker = group_marker(1, tree.width)
        tree.extend(at, marker, array("Q", [1 << 32 | 100 + number]))
    return namespace


def walk(namespace: Namespace, letters: str) -> tuple[int, list[int]]:
    """Returns how far a sequence is cached, and the slots of that path."""
    tree = namespace.index
    at = tree.descend(Position(tree.root, 0), paged(letters), len(letters))
    return at.depth, list(path_slots(at))


def jumps(namespace: Namespace) -> int:
    """Returns the number of jumps, each of which both its nodes know."""
    nodes = [namespace.index.root, *namespace.index.nodes.values()]
    found = [node.jump_down for node in nodes if node.jump_down is not None]
    assert all(each.below.jump_up is each for each in found)
    return len(found)


def test_a_long_walk_leaves_jumps() -> None:
    """The next walk takes them, for the whole sequence and for parts of it."""
    plain, jumping = space(RadixIndex), space(ShortJumps)
    for _ in range(2):
        for end in range(len(LETTERS) + 1):
            for asked in (LETTERS[:end], LETTERS[:end] + "zz"):
                assert walk(jumping, asked) == walk(plain, asked)
    assert jumps(jumping) > 1
    assert jumps(plain) == 0


@pytest.mark.parametrize("seed", range(12))
def test_a_walk_after_changes_finds_the_same(seed: int) -> None:
    """Pages of groups and of the path leave, nodes merge and split; jumps never mislead."""
    random, spaces = Random(seed), (space(RadixIndex), space(ShortJumps))
    marker = group_marker(1, spaces[0].index.width)
    for number in range(60):
        depth = random.randrange(1, len(LETTERS) + 1)
        kind = random.choice(["group goes", "tail goes", "removed", "forks", "back"])
        for namespace in spaces:
            change(namespace, kind, depth, number, marker)
        for asked in (LETTERS, LETTERS[:depth], LETTERS[:depth] + "zy"):
            assert walk(spaces[0], asked) == walk(spaces[1], asked)
        jumps(spaces[1])


def change(namespace: Namespace, kind: str, depth: int, number: int, marker: bytes) -> None:
    """Makes one change at a place of the path, if it can be made there."""
    tree = namespace.index
    at = tree.descend(Position(tree.root, 0), paged(LETTERS), depth)
    node = at.node
    whole = at.depth == depth and at.pages == len(node.slots)
    slot = array("Q", [1 << 32 | 1000 + number])
    if kind == "group goes" and whole and marker in node.children:
        tree.cut_tail(node.children[marker], 1)
        tree.compact(node)
    elif kind == "tail goes" and whole and not node.children:
        above = node.parent
        tree.cut_tail(node, 1)
        tree.compact(node if node.slots or above is None else above)
    elif kind == "removed" and number % 3 == 0 and whole:
        above = node.parent
        tree.detach(node)
        assert above is not None
        tree.compact(above)
    elif kind == "forks" and at.depth == depth:
        if tree.descend(at, paged("z"), 1) == at:
            tree.extend(at, paged("z"), slot)
    elif kind == "back":
        at = tree.descend(Position(tree.root, 0), paged(LETTERS), len(LETTERS))
        if at.depth < len(LETTERS):
            end = tree.extend(at, paged(LETTERS[at.depth]), slot)
            tree.extend(end, marker, array("Q", [1 << 32 | 2000 + number]))


@pytest.mark.parametrize("depth", range(1, len(LETTERS) + 1))
def test_no_jump_leads_past_a_condemned_node(depth: int) -> None:
    """A walk ends above it, also one that jumped before; jumps above it stay."""
    namespace = space(ShortJumps)
    walk(namespace, LETTERS)
    tree, before = namespace.index, jumps(namespace)
    at = tree.descend(Position(tree.root, 0), paged(LETTERS[:depth]), depth)
    tree.condemn(at.node)
    assert walk(namespace, LETTERS)[0] == depth - 1
    assert jumps(namespace) < before or depth == len(LETTERS)
    assert walk(namespace, LETTERS)[0] == depth - 1
