"""Page layouts and namespace identities."""

from dataclasses import replace
from math import prod

import pytest

from kvstore.core.values.layout import (
    DTYPE_BYTES,
    NamespaceIdentity,
    OpaqueContent,
    PagedContent,
    PageLayout,
)
from kvstore.errors import InvalidField, LayoutMismatch

CONTENT = PagedContent(layer_count=3, kv_head_count=2, head_dim=8, dtype="bfloat16")
LAYOUT = PageLayout(16, 3 * 2 * 16 * 2 * 8 * 2, 1, CONTENT)


@pytest.mark.parametrize("dtype", DTYPE_BYTES)
@pytest.mark.parametrize("kv_factor", [1, 2])
def test_a_page_is_as_long_as_its_shape(dtype: str, kv_factor: int) -> None:
    """Bytes are layers * factor * tokens * heads * dim, times those of an element."""
    content = PagedContent(3, 2, 8, dtype, kv_factor)
    elements = prod((3, kv_factor, 16, 2, 8))
    assert content.page_bytes(16) == elements * DTYPE_BYTES[dtype]


def test_keys_and_values_are_the_default() -> None:
    """A page has keys and values unless it says otherwise."""
    assert CONTENT.kv_factor == 2


def test_an_unknown_type_is_refused_by_name() -> None:
    """An element type that the store does not know the size of is an error that names it."""
    with pytest.raises(InvalidField) as error:
        replace(LAYOUT, content=replace(CONTENT, dtype="float128"))
    assert error.value.metadata["field"] == "layout.paged.dtype"
    assert error.value.metadata["value"] == "float128"


@pytest.mark.parametrize("name", ["page_tokens", "page_bytes", "tensor_parallel_size"])
@pytest.mark.parametrize("value", [0, -1])
def test_sizes_are_positive(name: str, value: int) -> None:
    """A size that is not positive is refused by its name and value."""
    sizes = {"page_tokens": 16, "page_bytes": 64, "tensor_parallel_size": 1} | {name: value}
    with pytest.raises(InvalidField) as error:
        PageLayout(**sizes, content=OpaqueContent(b"print"))
    assert error.value.metadata == {"field": f"layout.{name}", "value": str(value)}


def test_a_pages_bytes_are_those_of_its_shape() -> None:
    """A declared size that is not the shape's is refused, and the error says what it comes to."""
    with pytest.raises(InvalidField) as error:
        replace(LAYOUT, page_bytes=LAYOUT.page_bytes + 1)
    assert error.value.metadata["field"] == "layout.page_bytes"
    assert str(LAYOUT.page_bytes) in error.value.metadata["why"]


def test_an_opaque_layout_has_the_size_it_says() -> None:
    """The store does not know an opaque page's shape, and takes any size."""
    assert PageLayout(16, 12_345, 1, OpaqueContent(b"print")).page_bytes == 12_345


def test_an_opaque_layout_needs_a_fingerprint() -> None:
    """Without a fingerprint two layouts could not be told apart."""
    with pytest.raises(InvalidField) as error:
        PageLayout(16, 64, 1, OpaqueContent(b""))
    assert error.value.metadata["field"] == "layout.opaque.fingerprint"


def test_an_opaque_page_does_not_divide_by_default() -> None:
    """Unless its engine says so, parts of a page can't be used."""
    assert not OpaqueContent(b"print").divides_by_token


def test_equal_layouts_share() -> None:
    """A layout built again from the same values is the same."""
    LAYOUT.require_equal(replace(LAYOUT, content=replace(CONTENT)))


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (PageLayout(8, 3 * 2 * 8 * 2 * 8 * 2, 1, CONTENT), "page_tokens"),
        (replace(LAYOUT, tensor_parallel_size=2), "tensor_parallel_size"),
        (replace(LAYOUT, content=replace(CONTENT, dtype="float16")), "content"),
        (replace(LAYOUT, content=OpaqueContent(b"print")), "content"),
    ],
)
def test_another_layout_is_refused_by_its_difference(other: PageLayout, field: str) -> None:
    """The error names the field that differs first, with both values."""
    with pytest.raises(LayoutMismatch) as error:
        LAYOUT.require_equal(other)
    assert error.value.metadata == {
        "field": field,
        "cached": str(getattr(LAYOUT, field)),
        "requested": str(getattr(other, field)),
    }


def test_a_namespace_is_what_shapes_its_pages_and_whose_it_is() -> None:
    """Tenant, model, adapter and salt make a namespace; a display name does not."""
    identity = NamespaceIdentity(b"model", b"adapter", b"salt", "a name")
    assert replace(identity, display_name="another").key("a") == identity.key("a")
    keys = {
        identity.key("a"),
        identity.key("b"),
        replace(identity, model_digest=b"other").key("a"),
        replace(identity, adapter_digest=b"other").key("a"),
        replace(identity, salt=b"other").key("a"),
        NamespaceIdentity(b"model").key("a"),
        NamespaceIdentity(b"", b"model").key("a"),
    }
    assert len(keys) == 7
