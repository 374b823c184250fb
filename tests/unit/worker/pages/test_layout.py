"""A page layout says how large a page is and how its rows are counted."""

import pytest

from inference_worker.pages.layout import PageLayout


def test_sizes_follow_from_the_shape() -> None:
    """Bytes, rows and values of Gemma 3 270M's pages follow from its shape."""
    layout = PageLayout(18, 1, 256, "float32", 16)
    assert layout.page_shape == (18, 2, 16, 1, 256)
    assert layout.page_bytes == 18 * 2 * 16 * 256 * 4
    assert (layout.rows_per_page, layout.token_values) == (36, 256)


def test_half_precision_halves_a_page() -> None:
    """The dtype decides the bytes, not the shape."""
    sizes = [PageLayout(2, 2, 8, dtype, 4).page_bytes for dtype in ("float32", "bfloat16")]
    assert sizes[0] == 2 * sizes[1]


@pytest.mark.parametrize(("tokens", "pages"), [(0, 0), (1, 1), (16, 1), (17, 2)])
def test_a_partly_filled_page_counts(tokens: int, pages: int) -> None:
    """The number of pages is rounded up."""
    assert PageLayout(1, 1, 1, "float32", 16).pages_for(tokens) == pages


@pytest.mark.parametrize(("dtype", "page_tokens"), [("int8", 16), ("float32", 0)])
def test_what_no_page_has_is_refused(dtype: str, page_tokens: int) -> None:
    """An unknown dtype and an empty page raise."""
    with pytest.raises(ValueError, match=r"page|dtype"):
        PageLayout(1, 1, 1, dtype, page_tokens)
