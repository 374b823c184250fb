"""The layout of a page's bytes."""

from dataclasses import replace

import pytest

from kvstore_client.layout import (
    NamespaceIdentity,
    NamespaceKey,
    OpaqueContent,
    PagedContent,
    PageLayout,
)

CONTENT = PagedContent(layer_count=2, kv_head_count=4, head_dim=8, dtype="bfloat16")


def test_the_bytes_of_a_page_follow_from_its_shape() -> None:
    """A page has layers times K and V times tokens times heads times their size."""
    layout = PageLayout.paged(16, CONTENT)
    assert layout.page_bytes == 2 * 2 * 16 * 4 * 8 * 2
    assert CONTENT.page_shape(16) == (2, 2, 16, 4, 8)
    assert replace(CONTENT, kv_factor=1).page_bytes(16) == layout.page_bytes // 2


def test_a_paged_layout_travels_whole() -> None:
    """Every field of a paged layout is in its message."""
    message = PageLayout.paged(16, CONTENT, tensor_parallel_size=2).to_message()
    assert (message.page_tokens, message.page_bytes) == (16, 4096)
    assert (message.tensor_parallel_size, message.paged.layer_count) == (2, 2)
    assert (message.paged.kv_head_count, message.paged.head_dim) == (4, 8)
    assert (message.paged.dtype, message.paged.kv_factor) == ("bfloat16", 2)


def test_an_opaque_layout_travels_whole() -> None:
    """Every field of an opaque layout is in its message."""
    layout = PageLayout(16, 999, OpaqueContent(b"print", divides_by_token=True))
    message = layout.to_message()
    assert message.page_bytes == 999
    assert (message.opaque.fingerprint, message.opaque.divides_by_token) == (b"print", True)


@pytest.mark.parametrize("name", ["page_tokens", "page_bytes", "tensor_parallel_size"])
def test_a_size_below_one_is_refused(name: str) -> None:
    """A layout without tokens, bytes or ranks is refused by name."""
    with pytest.raises(ValueError, match=name):
        replace(PageLayout(1, 1, OpaqueContent(b"x")), **{name: 0})


def test_a_layout_that_contradicts_itself_is_refused() -> None:
    """Bytes that are not the shape's, and an element type that nobody knows, are refused."""
    with pytest.raises(ValueError, match="4096"):
        PageLayout(16, 4095, CONTENT)
    with pytest.raises(ValueError, match="float12"):
        PageLayout.paged(16, replace(CONTENT, dtype="float12"))


def test_an_identity_travels_whole() -> None:
    """Every field of an identity is in its message."""
    message = NamespaceIdentity(b"m", b"a", b"s", "name").to_message()
    assert (message.model_digest, message.adapter_digest) == (b"m", b"a")
    assert (message.salt, message.display_name) == (b"s", "name")


def test_equal_namespaces_have_equal_keys() -> None:
    """Two programs' parts that ask for the same namespace find the same one."""

    def key(salt: bytes) -> NamespaceKey:
        return NamespaceKey(
            NamespaceIdentity(b"m", salt=salt), PageLayout(4, 8, OpaqueContent(b"x"))
        )

    assert {key(b"a"): 1}[key(b"a")] == 1
    assert key(b"a") != key(b"b")
