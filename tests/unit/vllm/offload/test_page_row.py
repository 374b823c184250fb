"""A page as a row of all ranks' bytes."""

from dataclasses import replace

import pytest

from kvstore_vllm.offload.page_row import ALIGNMENT, PageRow

ROW = PageRow(page_tokens=16, rank_bytes=5_000, copies=2, facts=("LBHNC", "a layer"))


def test_ranks_lie_beside_each_other_in_a_row_of_whole_memory_pages() -> None:
    """A row is what vLLM's region makes of it: the ranks' bytes, rounded up."""
    assert ROW.row_bytes == 3 * ALIGNMENT
    assert [ROW.begin(rank) for rank in range(2)] == [0, 5_000]
    assert ROW.layout.page_bytes == ROW.row_bytes
    assert ROW.layout.page_tokens == 16


def test_ranks_with_equal_bytes_share_them() -> None:
    """With one copy for all, every rank reads the same bytes."""
    shared = replace(ROW, copies=1)
    assert shared.row_bytes == 2 * ALIGNMENT
    assert shared.begin(1) == 0


@pytest.mark.parametrize(
    "other",
    [
        {"page_tokens": 32},
        {"rank_bytes": 5_001},
        {"copies": 1},
        {"facts": ("LBHNC", "another layer")},
        {"facts": ("LBHNCa", " layer")},
    ],
)
def test_other_rows_have_other_layouts(other: dict[str, object]) -> None:
    """Engines whose rows differ in anything share no pages."""
    assert replace(ROW, **other).layout != ROW.layout  # type: ignore[arg-type]
