"""The keys that each program of a step's attention reads.

As FlashInfer's plan and FlashAttention 3's scheduler metadata do, the host cuts the keys of a step
into shares of about equal size before the launch. A program's time grows with its keys, so one long
context among short ones would leave most of a GPU idle.
"""

from bisect import bisect_left
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

# Merging a share of fewer keys costs more than the share saves.
SPLIT_KEYS: Final = 256
# Columns of an entry, and of a merge.
ENTRY_COLUMNS: Final = 8
MERGE_COLUMNS: Final = 4

Numbers = npt.NDArray[np.int64]


class Parts(NamedTuple):
    """Some parts of a step: int64 ``[parts]`` each.

    ``row`` is where a part's tokens begin in the step, ``start`` the position of its first token,
    ``tokens`` the number of its tokens. ``table`` is where the part's page distances begin.
    """

    row: Numbers
    start: Numbers
    tokens: Numbers
    table: Numbers

    def where(self, chosen: npt.NDArray[np.bool_]) -> "Parts":
        """Returns the chosen parts."""
        return Parts(*(each[chosen] for each in self))


class WorkList(NamedTuple):
    """The work of the programs of one launch: int64 ``[entries, 8]``, the longest first.

    The columns of an entry: the step's row of its first query, that query's position, the number of
    queries, where the page distances begin, the first key, the key after the last, where the
    partial results go (-1: the answer is complete), and 1 if no earlier share of the same queries
    exists.

    ``merges`` ``[tokens, 4]`` are the tokens with partial results: the step's row, the first
    partial result, how far the next one is, and their number. ``partial_count`` counts the partial
    results.
    """

    entries: Numbers
    merges: Numbers
    partial_count: int


NO_WORK: Final = WorkList(
    np.empty((0, ENTRY_COLUMNS), np.int64), np.empty((0, MERGE_COLUMNS), np.int64), 0
)


def plan_work(
    parts: Parts,
    *,
    queries: int,
    keys: int,
    window: int | None,
    programs: int,
    first_partial: int = 0,
) -> WorkList:
    """Cuts parts into tiles of ``queries`` queries, and the keys of long tiles into shares.

    A program reads ``keys`` keys at a time; shares begin at multiples of that. Keys outside the
    ``window`` are not read. ``programs`` run at once. A share has at most twice the mean number of
    key blocks of all shares, or ``SPLIT_KEYS`` keys. Partial results are numbered from
    ``first_partial`` on.
    """
    if not len(parts.tokens):
        return NO_WORK
    tiles = -(-parts.tokens // queries)
    part = np.repeat(np.arange(len(tiles)), tiles)
    first = _counted_within(tiles) * queries
    count = np.minimum(parts.tokens[part] - first, queries)
    position = parts.start[part] + first
    lowest = np.zeros_like(position)
    if window is not None:
        lowest = np.maximum(position - window + 1, 0) // keys * keys
    end = position + count
    blocks = -(-(end - lowest) // keys)

    shares = -(-blocks // _most_blocks(blocks, programs, max(1, SPLIT_KEYS // keys)))
    partials = np.where(shares > 1, shares * count, 0)
    partial = first_partial + partials.cumsum() - partials

    tile = np.repeat(np.arange(len(shares)), shares)
    share = _counted_within(shares)
    begin = lowest[tile] + blocks[tile] * share // shares[tile] * keys
    behind = lowest[tile] + blocks[tile] * (share + 1) // shares[tile] * keys
    behind = np.minimum(behind, end[tile])
    slot = np.where(shares[tile] > 1, partial[tile] + share * count[tile], -1)
    row = parts.row[part] + first
    entries = np.empty((len(tile), ENTRY_COLUMNS), np.int64)
    columns = (row, position, count, parts.table[part])
    for number, column in enumerate(columns):
        entries[:, number] = column[tile]
    for number, column in enumerate((begin, behind, slot, share == 0), len(columns)):
        entries[:, number] = column
    # The longest first, so that the programs that start last are short.
    entries = entries[np.argsort(begin - behind, kind="stable")]

    split = np.flatnonzero(shares > 1)
    tile = np.repeat(split, count[split])
    token = _counted_within(count[split])
    merges = np.stack([row[tile] + token, partial[tile] + token, count[tile], shares[tile]], axis=1)
    return WorkList(entries, merges, int(partials.sum()))


def _most_blocks(blocks: Numbers, programs: int, least: int) -> int:
    """Chooses how many key blocks a share has at most.

    Chooses the fewest with which all shares run at once. If that is more than twice the mean,
    chooses the mean over n shares, n being the larger of the programs and the tiles. With most =
    ceil(total / n) and n >= tiles, shares * most <= total + tiles * (most - 1) <= 2 * total.
    """

    def share_count(most: int) -> int:
        return int((-(-blocks // most)).sum())

    total, longest = int(blocks.sum()), int(blocks.max(initial=1))
    most = longest
    if len(blocks) < programs:
        fewest = -(-total // programs)
        sizes = range(fewest, longest + 1)
        most = sizes[bisect_left(sizes, x=True, key=lambda each: share_count(each) <= programs)]
    if most * share_count(most) > 2 * total:
        most = -(-total // max(programs, len(blocks)))
    return max(most, least)


def _counted_within(counts: Numbers) -> Numbers:
    """Counts from zero within each group: 0 1 2, 0 1 for groups of three and two."""
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    counted: Numbers = np.arange(total) - np.repeat(ends - counts, counts)
    return counted
