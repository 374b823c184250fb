"""The layout of a page's bytes."""

from dataclasses import replace

import pytest

from kvstore_client.values.page_layout import OpaqueContent, PagedContent, PageLayout

CONTENT = PagedContent(layer_count=2, kv_head_count=4, head_dim=8, dtype="bfloat16")


def test_the_bytes_of_a_page_follow_from_its_shape() -> None:
    """A page's size is layers x (K and V) x tokens x heads x head size x element size."""
    layout = PageLayout.paged(16, CONTENT)
    assert layout.page_bytes == 2 * 2 * 16 * 4 * 8 * 2
    assert CONTENT.page_shape(16) == (2, 2, 16, 4, 8)
    assert replace(CONTENT, kv_factor=1).page_bytes(16) == layout.page_bytes // 2


def test_a_paged_layout_travels_whole() -> None:
    """The message of a paged layout has each of its fields."""
    message = PageLayout.paged(16, CONTENT, tensor_parallel_size=2).to_message()
    assert (message.page_tokens, message.page_bytes) == (16, 4096)
    assert (message.tensor_parallel_size, message.paged.layer_count) == (2, 2)
    assert (message.paged.kv_head_count, message.paged.head_dim) == (4, 8)
    assert (message.paged.dtype, message.paged.kv_factor) == ("bfloat16", 2)


def test_an_opaque_layout_travels_whole() -> None:
    """The message of an opaque layout has each of its fields."""
    layout = PageLayout(16, 999, OpaqueContent(b"print", divides_by_token=True))
    message = layout.to_message()
    assert message.page_bytes == 999
    assert (message.opaque.fingerprint, message.opaque.divides_by_token) == (b"print", True)


@pytest.mark.parametrize("name", ["page_tokens", "page_bytes", "tensor_parallel_size"])
def test_a_size_below_one_is_refused(name: str) -> None:
    """A layout without tokens, bytes or ranks is refused by the field's name."""
    with pytest.raises(ValueError, match=name):
        replace(PageLayout(1, 1, OpaqueContent(b"x")), **{name: 0})


def test_a_layout_that_contradicts_itself_is_refused() -> None:
    """A layout whose size contradicts its shape, or with an unknown dtype, is refused."""
    with pytest.raises(ValueError, match="4096"):
        PageLayout(16, 4095, CONTENT)
    with pytest.raises(ValueError, match="float12"):
        PageLayout.paged(16, replace(CONTENT, dtype="float12"))
