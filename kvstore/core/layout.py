"""Who may share pages, and how a page's bytes are laid out."""

from dataclasses import dataclass, fields
from math import prod

from kvstore.errors import InvalidField, LayoutMismatch

# Bytes of an element by torch's name of its type.
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
    """A page is ``[layers, kv_factor, tokens, kv_heads, head_dim]``, contiguous."""

    layer_count: int
    kv_head_count: int
    head_dim: int
    dtype: str
    kv_factor: int = 2

    def page_bytes(self, page_tokens: int) -> int:
        """Return the bytes of a page of ``page_tokens`` tokens.

        Raises :class:`InvalidField` for an unknown element type.
        """
        if self.dtype not in DTYPE_BYTES:
            raise InvalidField(field="layout.paged.dtype", value=self.dtype, why="unknown")
        shape = (self.layer_count, self.kv_factor, page_tokens, self.kv_head_count, self.head_dim)
        return prod(shape) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class OpaqueContent:
    """An engine's own layout, of which the store knows the fingerprint alone."""

    fingerprint: bytes
    divides_by_token: bool = False


@dataclass(frozen=True)
class PageLayout:
    """How a page's bytes are laid out; equal or not shared.

    Raises :class:`InvalidField` where a size is not positive, or ``page_bytes``
    is not what the paged content comes to.
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

    @property
    def divides_by_token(self) -> bool:
        """Whether a leading part of a page is of use without the rest."""
        return isinstance(self.content, PagedContent) or self.content.divides_by_token

    def require_equal(self, requested: "PageLayout") -> None:
        """Raise :class:`LayoutMismatch`, naming the first difference."""
        for field in fields(self):
            cached, wanted = getattr(self, field.name), getattr(requested, field.name)
            if cached != wanted:
                raise LayoutMismatch(field=field.name, cached=cached, requested=wanted)


@dataclass(frozen=True)
class NamespaceIdentity:
    """Who may share, within a tenant. ``display_name`` plays no part in identity."""

    model_digest: bytes
    adapter_digest: bytes = b""
    salt: bytes = b""
    display_name: str = ""

    def key(self, tenant: str) -> tuple[str, bytes, bytes, bytes]:
        """Return what makes a namespace this one and no other."""
        return (tenant, self.model_digest, self.adapter_digest, self.salt)
