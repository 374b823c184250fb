"""The layout of a page's bytes."""

from dataclasses import dataclass
from math import prod

from kvstore.v1 import types_pb2

# Bytes of an element, by torch's name of the type.
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
    """A page is ``[layers, kv_factor, tokens, kv_heads, head_dim]``, contiguous.

    ``dtype`` is torch's name, such as ``"bfloat16"``. ``kv_factor`` is 2 for keys
    and values, and 1 for one latent that is both.
    """

    layer_count: int
    kv_head_count: int
    head_dim: int
    dtype: str
    kv_factor: int = 2

    def page_shape(self, page_tokens: int) -> tuple[int, int, int, int, int]:
        """Returns the shape of a page of ``page_tokens`` tokens, in elements."""
        return (self.layer_count, self.kv_factor, page_tokens, self.kv_head_count, self.head_dim)

    def page_bytes(self, page_tokens: int) -> int:
        """Returns the bytes of such a page; raises ``ValueError`` for an unknown dtype."""
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype is {self.dtype!r}: set one of {sorted(DTYPE_BYTES)}")
        return prod(self.page_shape(page_tokens)) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class OpaqueContent:
    """An engine's own layout. The store knows only its fingerprint."""

    fingerprint: bytes
    divides_by_token: bool = False


@dataclass(frozen=True)
class PageLayout:
    """The layout of a page's bytes. Only equal layouts share pages.

    ``page_bytes`` is of one rank. Raises ``ValueError`` for a size below one, and
    if ``page_bytes`` is not the size of the paged content.
    """

    page_tokens: int
    page_bytes: int
    content: PagedContent | OpaqueContent
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name in ("page_tokens", "page_bytes", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: set at least 1")
        if isinstance(self.content, PagedContent):
            expected = self.content.page_bytes(self.page_tokens)
            if self.page_bytes != expected:
                raise ValueError(
                    f"page_bytes is {self.page_bytes}, but the content's shape has {expected}"
                )

    @classmethod
    def paged(
        cls, page_tokens: int, content: PagedContent, *, tensor_parallel_size: int = 1
    ) -> "PageLayout":
        """Returns the layout of paged content, with its ``page_bytes`` computed."""
        return cls(page_tokens, content.page_bytes(page_tokens), content, tensor_parallel_size)

    def to_message(self) -> types_pb2.PageLayout:
        """Returns the layout as a protocol message."""
        message = types_pb2.PageLayout(
            page_tokens=self.page_tokens,
            page_bytes=self.page_bytes,
            tensor_parallel_size=self.tensor_parallel_size,
        )
        content = self.content
        if isinstance(content, PagedContent):
            message.paged.layer_count = content.layer_count
            message.paged.kv_head_count = content.kv_head_count
            message.paged.head_dim = content.head_dim
            message.paged.dtype = content.dtype
            message.paged.kv_factor = content.kv_factor
        else:
            message.opaque.fingerprint = content.fingerprint
            message.opaque.divides_by_token = content.divides_by_token
        return message
