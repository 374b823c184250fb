"""Places of a trace's pages on the nodes of a shared engine: load, and hits beside a dead node.

The engine has room for all pages, and hosts have no memory of their own. So each request reads
every page that an earlier one wrote, also those that all requests share. A block of the trace
counts as a whole one.
"""

from collections.abc import Callable, Sequence
from math import gcd
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from support.replay.trace import BLOCK_TOKENS, Request

SLOTS: Final = 16_384
Numbers = npt.NDArray[np.int64]
Starts = Callable[[int], int]


class Placement(NamedTuple):
    """The rule by which pages go to nodes.

    ``start`` gives the first page of the segment of a page, both as numbers in a path. Every
    boundary of a segment is a multiple of ``step``. Segments go to ``shards`` places, or each to
    a place of its own if that is 0. Places are slots: drawn ones, or one from each of ``shards``
    equal parts with ``is_even``.
    """

    name: str
    start: Starts
    step: int
    shards: int = 0
    is_even: bool = False


class Placed(NamedTuple):
    """The load of the nodes and the hits without one of them, for one drawing of the places.

    Loads are those of the busiest node over the mean. ``hits_left`` is the share of all hits
    that is left without a node, as the mean over the nodes.
    """

    stored: float
    read: float
    hits_left: float


class TracePages:
    """The pages of a trace in runs of ``step`` pages, each with the segment that it lies in.

    Raises ``ValueError`` for a trace without hits.
    """

    def __init__(self, requests: Sequence[Request], page_tokens: int, placement: Placement) -> None:
        self._placement = placement
        block = BLOCK_TOKENS // page_tokens
        step = gcd(placement.step, block)
        runs = block // step
        self._count = len(requests)
        lengths = np.array([len(each.ids) for each in requests])
        ids = np.concatenate([np.array(each.ids, np.int64) for each in requests])
        offsets = np.cumsum(lengths) - lengths
        # Of each run: the request, and the number of its first page in the path.
        self._request = np.repeat(np.arange(len(requests)), lengths * runs)
        within = np.arange(len(self._request)) - np.repeat(offsets * runs, lengths * runs)
        self._page = within * step
        most = int(lengths.max()) * block
        starts = np.array([placement.start(page) for page in range(0, most, step)])
        start = starts[within]
        self._segment = ids[offsets[self._request] + start // block] * block + start % block
        visited = np.repeat(ids, runs) * runs + within % runs
        _, first = np.unique(visited, return_index=True)
        self._stored = self._segment[first]
        # An id stands for its whole path, so the blocks that were written before come first.
        written_by = np.full(int(ids.max()) + 1, len(requests))
        np.minimum.at(written_by, ids, np.repeat(np.arange(len(requests)), lengths))
        hit = np.repeat(written_by[ids], runs) < self._request
        self._hits = np.bincount(self._request[hit], minlength=len(requests)) * step
        self._hit = np.flatnonzero(hit)
        if not len(self._hit):
            raise ValueError("no request of the trace shares a block with an earlier one")

    def placed(self, nodes: int, seed: int) -> Placed:
        """Returns the load and the hits for one drawing of the places."""
        stored = _nodes(self._stored, self._placement, nodes, seed)
        read = _nodes(self._segment[self._hit], self._placement, nodes, seed)
        # The first page that a request misses while a node is down.
        ends = np.repeat(self._hits, nodes)
        np.minimum.at(ends, self._request[self._hit] * nodes + read, self._page[self._hit])
        left = ends.sum() / (self._hits.sum() * nodes)
        return Placed(_busiest(stored, nodes), _busiest(read, nodes), float(left))


def _nodes(segments: Numbers, placement: Placement, nodes: int, seed: int) -> Numbers:
    """Returns the node of each segment: by its shard's slot if there are shards."""
    drawn = _mixed(segments, seed)
    if placement.shards:
        shard = drawn % placement.shards
        drawn = _mixed(shard, seed + 1)
        if placement.is_even:
            part = SLOTS // placement.shards
            drawn = shard * part + drawn % part
    return drawn % SLOTS * nodes // SLOTS


def _mixed(numbers: Numbers, seed: int) -> Numbers:
    """Returns numbers that look random: splitmix64 (Steele, Lea and Flood, 2014), without sign."""
    mixed = numbers.astype(np.uint64) + np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % (1 << 64))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return ((mixed ^ (mixed >> np.uint64(31))) >> np.uint64(1)).astype(np.int64)


def _busiest(nodes_of: Numbers, nodes: int) -> float:
    """Returns the load of the busiest node over the mean."""
    counts = np.bincount(nodes_of, minlength=nodes)
    return float(counts.max() / counts.mean())
