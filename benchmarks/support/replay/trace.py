"""A trace of requests as chains of block ids, and the future uses of its blocks."""

from enum import Enum
from itertools import groupby
from pathlib import Path
from random import Random
from typing import NamedTuple

from kvstore.core.values.requests import ExpectedReuse
from kvstore_ctl.bench.prompt_trace import blocks_of, object_of, rows_of
from support.traces import asking

# Blocks of the public traces that `traces/README.md` names, in tokens.
BLOCK_TOKENS = 512
LINE = 'a line is JSON with "timestamp", "hash_ids" and "input_length"'


class Request(NamedTuple):
    """One prompt: the ``ids`` of its blocks, each of which also identifies all before it.

    ``token_count`` counts its tokens, with those of a partial last block. ``time`` is in seconds
    from the trace's beginning.
    """

    time: float
    ids: tuple[int, ...]
    token_count: int

    def tokens_of(self, blocks: int) -> int:
        """Returns the tokens of the first ``blocks`` blocks."""
        return min(blocks * BLOCK_TOKENS, self.token_count)


def load(path: Path, count: int | None = None) -> list[Request]:
    """Returns a trace's requests, or the first ``count`` of them. Files are .gz or plain lines.

    Raises ``ValueError`` for a file that cannot be read or has no tokens. For a wrong line it has
    the line's number.
    """
    rows = rows_of(path, _request, LINE, count)
    return asking(path, rows, lambda each: each.token_count)


def _request(line: object) -> Request:
    row = object_of(line)
    ids, length = blocks_of(row)
    return Request(row["timestamp"] / 1000, tuple(ids), length)


def next_uses(requests: list[Request]) -> list[list[int]]:
    """Returns the next request for each block of each request, or the number after the last."""
    never = len(requests)
    following: dict[int, int] = {}
    uses = []
    for number in range(never - 1, -1, -1):
        ids = requests[number].ids
        uses.append([following.get(each, never) for each in ids])
        following.update(dict.fromkeys(ids, number))
    return uses[::-1]


class Drawn(Enum):
    """The unit for which a wrong hint is drawn."""

    RUN = "run"
    """Those blocks of a request that return, or those that do not."""
    REQUEST = "request"
    """All blocks of a request."""
    BLOCK = "block"
    """One block."""


class Oracle:
    """Hints of each request's blocks: whether any later request has them, or the opposite.

    A request's blocks that return come first, and then the others. Hints are wrong with the
    probability ``noise``, drawn once for each unit of ``drawn``.
    """

    def __init__(
        self, requests: list[Request], noise: float, drawn: Drawn = Drawn.RUN, seed: int = 1
    ) -> None:
        self._uses = next_uses(requests)
        self._noise = noise
        self._drawn = drawn
        self._random = Random(seed)

    def runs(self, number: int, first: int) -> list[tuple[int, ExpectedReuse]]:
        """Returns the end of each run of a request's blocks from ``first`` on, and its hint."""
        returns = [each < len(self._uses) for each in self._uses[number]]
        pairs = zip(returns, self._wrong(returns), strict=True)
        hints = [
            ExpectedReuse.CONTINUES if right != wrong else ExpectedReuse.ONE_SHOT
            for right, wrong in pairs
        ]
        runs, end = [], first
        for expected, group in groupby(hints[first:]):
            end += len(list(group))
            runs.append((end, expected))
        return runs

    def _wrong(self, returns: list[bool]) -> list[bool]:
        """Returns whether the hint of each block is wrong."""
        if self._drawn is Drawn.BLOCK:
            return [self._draw() for _ in returns]
        of_those, of_others = self._draw(), self._draw()
        if self._drawn is Drawn.REQUEST:
            of_others = of_those
        return [of_those if each else of_others for each in returns]

    def _draw(self) -> bool:
        return self._random.random() < self._noise
