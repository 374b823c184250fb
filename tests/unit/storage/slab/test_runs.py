"""Pages that lie side by side move together."""

import pytest

from kvstore.storage.slab.runs import RUN_BYTES, in_runs


@pytest.mark.parametrize(
    ("slots", "runs"),
    [
        ([], []),
        ([5], [[5]]),
        ([5, 6, 7], [[5, 6, 7]]),
        ([1, 3, 4, 9], [[1], [3, 4], [9]]),
        ([4, 3], [[4], [3]]),
    ],
)
def test_runs_are_cut_where_slots_part(slots: list[int], runs: list[list[int]]) -> None:
    """Each run is consecutive, and together they are all of it, in order."""
    assert [slots[each] for each in in_runs(slots, 4096)] == runs


def test_runs_have_a_bound() -> None:
    """No run is longer than a call may be, unless a page is."""
    slots = list(range(100))
    assert [slots[each] for each in in_runs(slots, RUN_BYTES // 40)] == [
        slots[:40],
        slots[40:80],
        slots[80:],
    ]
    assert len(in_runs(slots, 2 * RUN_BYTES)) == 100
