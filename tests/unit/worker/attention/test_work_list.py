"""The work list reads every key once, in shares of about equal size."""

from collections import defaultdict

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from inference_worker.attention.step_tables import SPLIT_KEYS, StepParts, WorkList, plan_work

# 132 multiprocessors with four programs each, for the 8 KV heads of an entry.
PROGRAMS = 132 * 4 // 8


def parts_of(*parts: tuple[int, int]) -> StepParts:
    """Makes consecutive parts of a step, each from its tokens before and tokens computed."""
    starts, counts = np.array(parts, np.int64).reshape(-1, 2).T
    return StepParts(counts.cumsum() - counts, starts, counts, np.arange(len(counts)) * 1000)


def sizes(work: WorkList) -> list[int]:
    """Returns how many keys each program reads."""
    return [int(entry[5] - entry[4]) for entry in work.entries]


def test_one_long_context_among_short_ones_keeps_no_program_busy_alone() -> None:
    """No program reads more than twice the mean, with one context of 128K tokens and 63 of 1K."""
    parts = parts_of((128 << 10, 1), *[(1 << 10, 1)] * 63)
    work = plan_work(parts, queries=4, keys=64, window=None, programs=PROGRAMS)
    read = sizes(work)
    assert sum(read) == (128 << 10) + 1 + 63 * ((1 << 10) + 1)
    assert max(read) <= 2 * sum(read) / len(read)
    assert read == sorted(read, reverse=True)


def test_equal_contexts_are_whole_where_splitting_them_gains_nothing() -> None:
    """Tiles that nearly fill the device stay whole, and nothing is merged."""
    for count in (60, 66, 500):
        work = plan_work(
            parts_of(*[(1023, 1)] * count), queries=4, keys=64, window=None, programs=PROGRAMS
        )
        assert sizes(work) == [1024] * count
        assert (work.partial_count, len(work.merges)) == (0, 0)


def test_a_single_long_context_fills_the_device() -> None:
    """One context's keys are split over all programs at once, in shares that differ by one read."""
    work = plan_work(parts_of((100_000, 1)), queries=4, keys=64, window=None, programs=PROGRAMS)
    assert PROGRAMS - 2 <= len(work.entries) <= PROGRAMS
    assert max(sizes(work)[:-1]) - min(sizes(work)[:-1]) <= 64


def test_keys_outside_a_window_are_not_read() -> None:
    """A windowed layer reads its window alone, from the start of the read with the first key."""
    parts = parts_of((100_000, 1), (100, 1))
    work = plan_work(parts, queries=4, keys=64, window=128, programs=1)
    spans = [tuple(map(int, entry[4:6])) for entry in work.entries]
    assert spans == [(99_840, 100_001), (0, 101)]


def test_no_part_is_no_work() -> None:
    """A step without prefills launches no prefill."""
    work = plan_work(parts_of(), queries=4, keys=64, window=None, programs=8)
    assert (len(work.entries), len(work.merges), work.partial_count) == (0, 0, 0)


@given(
    parts=st.lists(
        st.tuples(st.integers(0, 300) | st.integers(0, 200_000), st.integers(1, 70)),
        min_size=1,
        max_size=12,
    ),
    queries=st.integers(1, 40),
    keys=st.sampled_from([16, 32, 64, 128]),
    window=st.none() | st.integers(1, 5000),
    programs=st.integers(1, 700),
    first_partial=st.integers(0, 9),
)
def test_every_key_of_every_query_is_read_once(
    parts: list[tuple[int, int]],
    queries: int,
    keys: int,
    window: int | None,
    programs: int,
    first_partial: int,
) -> None:
    """Tiles cover the queries, shares cover a tile's keys, and merges name every share."""
    work = plan_work(
        parts_of(*parts),
        queries=queries,
        keys=keys,
        window=window,
        programs=programs,
        first_partial=first_partial,
    )
    tiles: dict[tuple[int, ...], list[tuple[int, ...]]] = defaultdict(list)
    for entry in work.entries.tolist():
        tiles[tuple(entry[:4])].append(tuple(entry[4:]))
    wanted = [
        (number * 1000, before + at) for number, (before, n) in enumerate(parts) for at in range(n)
    ]
    covered = {}
    for (row, position, count, table), shares in tiles.items():
        assert count <= queries
        for at in range(count):
            assert wanted[row + at] == (table, position + at)
            assert covered.setdefault(row + at, shares) is shares
        begins, ends, slots, firsts = zip(*sorted(shares), strict=True)
        lowest = 0 if window is None else max(position - window + 1, 0)
        assert lowest - keys < begins[0] <= lowest
        assert (begins[1:], ends[-1]) == (ends[:-1], position + count)
        assert not any(begin % keys for begin in begins)
        assert firsts == (1,) + (0,) * (len(shares) - 1)
        assert len(shares) > 1 or slots == (-1,)
    assert len(covered) == len(wanted)

    taken = []
    for token, first, stride, count in work.merges.tolist():
        (tile,) = [each for each in tiles if each[0] <= token < each[0] + each[2]]
        slots = sorted(slot + token - tile[0] for _, _, slot, _ in tiles[tile])
        assert slots == [first + number * stride for number in range(count)]
        taken += slots
    assert sorted(taken) == list(range(first_partial, first_partial + work.partial_count))
    split = {token for token, shares in covered.items() if len(shares) > 1}
    assert split == set(work.merges[:, 0].tolist())

    reads = [-(-size // keys) for size in sizes(work)]
    assert max(reads) <= max(2 * sum(reads) / len(reads), SPLIT_KEYS // keys)
