"""A tree cut to a size: the largest subtrees whole, the rest of each as one sum."""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

# The columns of a row: a node's number, its parent's (zero at the root), where its tokens start
# in the sequence, its tokens, the hits that ended in it, and the holds that end in it.
COLUMNS: Final = 6
Column: TypeAlias = NDArray[np.int64]
# A node, or the rest of a node's children, as JSON.
Entry: TypeAlias = dict[str, Any]
ROOT: Final = 0
# Most entries of a path to the root.
MAX_ABOVE = 32


@dataclass(frozen=True)
class Subtrees:
    """Sums over each node and all below it, by its place."""

    nodes: Column
    tokens: Column
    hits: Column
    holds: Column


class Outline:
    """The tree of a namespace, by places: the root, which has no tokens, is at place 0.

    Nodes without a fork, a hit or a hold between them are one run, with the number of the last.
    An index with one node a page has long runs.
    """

    def __init__(self, rows: "array[int]") -> None:
        """``rows`` has ``COLUMNS`` values a node, by rising numbers."""
        table = np.frombuffer(rows, dtype=np.int64).reshape(-1, COLUMNS)
        padded = np.vstack([np.zeros((1, COLUMNS), np.int64), table])
        self._number, parent, self._start, self._tokens, self._hits, self._holds = padded.T
        self._parent, depth = _places(self._number, parent)
        size = len(padded)
        self.sums = Subtrees(
            nodes=_summed(np.ones(size, np.int64), self._parent, depth),
            tokens=_summed(self._tokens, self._parent, depth),
            hits=_summed(self._hits, self._parent, depth),
            holds=_summed(self._holds, self._parent, depth),
        )
        # All children of a node in a row, the largest first.
        self._children = np.lexsort((self._number, -self.sums.tokens, self._parent))[1:]
        above = self._parent[self._children]
        self._first = np.searchsorted(above, np.arange(size), "left")
        self._end = np.searchsorted(above, np.arange(size), "right")
        goes_on = self._going_on()
        below, before = np.arange(size), np.arange(size)
        below[goes_on] = self._children[self._first[goes_on]]
        after = goes_on[self._parent]
        before[after] = self._parent[after]
        self._end_of_run, self._top_of_run = _farthest(below), _farthest(before)

    def __len__(self) -> int:
        return len(self._number) - 1

    def part(self, number: int, *, count: int, skip: int = 0) -> Entry | None:
        """Returns a node with up to ``count`` of the largest nodes below it; None if it left.

        The node's ``skip`` largest children are left out. An entry's ``other`` sums the children
        that are left out. ``path`` has the entries above, the nearest last.
        """
        place = int(np.searchsorted(self._number, number))
        if place == len(self._number) or self._number[place] != number:
            return None
        top = int(self._top_of_run[place])
        entry = self._entry(top, place)
        entries = {place: entry}
        shown = {place: min(skip, self._child_count(place))}
        # By tokens, then by age: (-tokens, its rank among its siblings, its parent).
        heap: list[tuple[int, int, int]] = []
        self._offer(heap, place, shown[place])
        while heap and len(entries) <= count:
            _, rank, above = heappop(heap)
            child = int(self._children[self._first[above] + rank])
            end = int(self._end_of_run[child])
            entries[end] = self._entry(child, end)
            entries[above]["children"].append(entries[end])
            shown[above], shown[end] = rank + 1, 0
            self._offer(heap, above, rank + 1)
            self._offer(heap, end, 0)
        for each, its in entries.items():
            its["other"] = self._rest(each, shown[each])
        entry["skipped"] = min(skip, self._child_count(place))
        entry["path"] = [
            {"id": int(self._number[end]), "start": int(self._start[head]), "tokens": tokens}
            for head, end, tokens in reversed(list(self._above(top)))
        ]
        return entry

    def _entry(self, top: int, end: int) -> Entry:
        sums = self.sums
        return {
            "id": int(self._number[end]),
            "start": int(self._start[top]),
            "tokens": self._run_tokens(top, end),
            "total": int(sums.tokens[top]),
            "nodes": int(sums.nodes[end]) - 1,
            "hits": int(sums.hits[end]),
            "holds": int(sums.holds[end]),
            "children": [],
            "other": None,
        }

    def _rest(self, place: int, shown: int) -> Entry | None:
        """Returns the sums of a node's children after the first ``shown``."""
        rest = self._children[self._first[place] + shown : self._end[place]]
        if not len(rest):
            return None
        sums = self.sums
        return {
            "skip": shown,
            "count": len(rest),
            "total": int(sums.tokens[rest].sum()),
            "hits": int(sums.hits[rest].sum()),
            "holds": int(sums.holds[rest].sum()),
        }

    def _offer(self, heap: list[tuple[int, int, int]], above: int, rank: int) -> None:
        if rank < self._child_count(above):
            child = self._children[self._first[above] + rank]
            heappush(heap, (-int(self.sums.tokens[child]), rank, above))

    def _above(self, top: int) -> Iterator[tuple[int, int, int]]:
        """Yields the runs above one, the nearest first: first place, last place, tokens."""
        for _ in range(MAX_ABOVE):
            if top == ROOT:
                return
            end = int(self._parent[top])
            top = int(self._top_of_run[end])
            yield top, end, self._run_tokens(top, end)

    def _run_tokens(self, top: int, end: int) -> int:
        totals = self.sums.tokens
        return int(totals[top] - totals[end] + self._tokens[end])

    def _child_count(self, place: int) -> int:
        return int(self._end[place] - self._first[place])

    def _going_on(self) -> NDArray[np.bool_]:
        """Returns a mask of the nodes whose run continues: one child, no hit and no hold."""
        marked = (self._hits != 0) | (self._holds != 0)
        goes_on: NDArray[np.bool_] = (self._end - self._first == 1) & ~marked
        goes_on[ROOT] = False
        return goes_on


def _farthest(steps: Column) -> Column:
    """Returns the last place of each place's chain of steps; an end is its own step."""
    while True:
        # Each round doubles the length of a step.
        farther = steps[steps]
        if np.array_equal(farther, steps):
            return steps
        steps = farther


def _places(number: Column, parent: Column) -> tuple[Column, Column]:
    """Returns the place of each node's parent and the node's depth; the root's depth is 0.

    A node whose parent has left becomes a child of the root.
    """
    found = np.minimum(np.searchsorted(number, parent), len(number) - 1)
    above = np.where(number[found] == parent, found, ROOT)
    depth = (np.arange(len(number)) > 0).astype(np.int64)
    # Each round doubles the distance. A node that does not reach the root is in a cycle.
    far = above.copy()
    for _ in range(len(number).bit_length()):
        depth += depth[far]
        far = far[far]
        if not far.any():
            break
    lost = far != ROOT
    above[lost], depth[lost] = ROOT, 1
    return above, depth


def _summed(own: Column, parent: Column, depth: Column) -> Column:
    """Returns the sum over each node and all below it."""
    totals = own.copy()
    order = np.argsort(-depth, kind="stable")
    bounds = np.flatnonzero(np.diff(depth[order])) + 1
    for level in np.split(order, bounds)[:-1]:
        np.add.at(totals, parent[level], totals[level])
    return totals
