"""The identity of a namespace, and the layout of a page's bytes."""

from dataclasses import dataclass, fields
from functools import cached_property
from math import prod

from kvstore.errors import InvalidField, LayoutMismatch

# The size of an element in bytes, by torch's name for its type.
DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True)
class PagedContent:
    """A page that is ``[layers, kv_factor, tokens, kv_heads, head_dim]``, contiguous."""

    layer_count: int
    kv_head_count: int
    head_dim: int
    dtype: str
    kv_factor: int = 2

    def page_bytes(self, page_tokens: int) -> int:
        """Returns the number of bytes of a page of ``page_tokens`` tokens.

        Raises :class:`InvalidField` for an unknown element type.
        """
        if self.dtype not in DTYPE_BYTES:
            raise InvalidField(field="layout.paged.dtype", value=self.dtype, why="unknown")
        shape = (self.layer_count, self.kv_factor, page_tokens, self.kv_head_count, self.head_dim)
        return prod(shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class OpaqueContent:
    """An engine's own layout. The store knows only its fingerprint."""

    fingerprint: bytes
    divides_by_token: bool = False


@dataclass(frozen=True)
class PageLayout:
    """The layout of a page's bytes. Namespaces with different layouts share nothing.

    Raises :class:`InvalidField` if a size is not positive, or if ``page_bytes`` differs from
    what the paged content needs.
    """

    page_tokens: int
    page_bytes: int
    tensor_parallel_size: int
    content: PagedContent | OpaqueContent

    def __post_init__(self) -> None:
        for name in ("page_tokens", "page_bytes", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise InvalidField(field=f"layout.{name}", value=getattr(self, name))
        if isinstance(self.content, PagedContent):
            expected = self.content.page_bytes(self.page_tokens)
            if expected != self.page_bytes:
                raise InvalidField(
                    field="layout.page_bytes", value=self.page_bytes, why=f"{expected} by its shape"
                )
        elif not self.content.fingerprint:
            raise InvalidField(field="layout.opaque.fingerprint", value="", why="empty")

    @cached_property
    def divides_by_token(self) -> bool:
        """True if a leading part of a page is useful without the rest."""
        return isinstance(self.content, PagedContent) or self.content.divides_by_token

    def require_equal(self, requested: "PageLayout") -> None:
        """Raises :class:`LayoutMismatch`, which names the first field that differs."""
        for field in fields(self):
            cached, wanted = getattr(self, field.name), getattr(requested, field.name)
            if cached != wanted:
                raise LayoutMismatch(field=field.name, cached=cached, requested=wanted)


@dataclass(frozen=True)
class NamespaceIdentity:
    """The part of a namespace's identity within its tenant. ``display_name`` is not part of it."""

    model_digest: bytes
    adapter_digest: bytes = b""
    salt: bytes = b""
    display_name: str = ""

    def key(self, tenant: str) -> tuple[str, bytes, bytes, bytes]:
        """Returns the key that no other namespace has."""
        return (tenant, self.model_digest, self.adapter_digest, self.salt)
