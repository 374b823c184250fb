"""How a page's bytes are laid out."""

from dataclasses import dataclass
from math import prod
from typing import NamedTuple

from kvstore.v1 import types_pb2

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
    """A page is ``[layers, kv_factor, tokens, kv_heads, head_dim]``, contiguous.

    ``dtype`` is torch's name, such as ``"bfloat16"``; ``kv_factor`` is 2 for keys
    and values and 1 for a latent that is both.
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
            msg = f"dtype {self.dtype!r} is none of {sorted(DTYPE_BYTES)}"
            raise ValueError(msg)
        return prod(self.page_shape(page_tokens)) * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True)
class OpaqueContent:
    """An engine's own layout, of which the store knows the fingerprint alone."""

    fingerprint: bytes
    divides_by_token: bool = False


@dataclass(frozen=True)
class PageLayout:
    """How a page's bytes are laid out; only equal layouts share pages.

    ``page_bytes`` is of one rank. Raises ``ValueError`` for a size below one and
    where ``page_bytes`` is not what paged content comes to.
    """

    page_tokens: int
    page_bytes: int
    content: PagedContent | OpaqueContent
    tensor_parallel_size: int = 1

    def __post_init__(self) -> None:
        for name in ("page_tokens", "page_bytes", "tensor_parallel_size"):
            if getattr(self, name) < 1:
                msg = f"{name} is at least 1, not {getattr(self, name)}"
                raise ValueError(msg)
        if isinstance(self.content, PagedContent):
            expected = self.content.page_bytes(self.page_tokens)
            if self.page_bytes != expected:
                msg = f"page_bytes is {expected} by its shape, not {self.page_bytes}"
                raise ValueError(msg)

    @classmethod
    def paged(
        cls, page_tokens: int, content: PagedContent, *, tensor_parallel_size: int = 1
    ) -> "PageLayout":
        """Returns the layout of paged content, its ``page_bytes`` computed."""
        return cls(page_tokens, content.page_bytes(page_tokens), content, tensor_parallel_size)

    def to_message(self) -> types_pb2.PageLayout:
        """Returns the layout as it travels."""
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


@dataclass(frozen=True)
class NamespaceIdentity:
    """Who may share, within the caller's own tenant.

    ``model_digest`` is of the weights and configuration, ``adapter_digest`` of
    the adapter or empty, ``salt`` keeps otherwise equal namespaces apart.
    ``display_name`` is for people and plays no part in identity.
    """

    model_digest: bytes
    adapter_digest: bytes = b""
    salt: bytes = b""
    display_name: str = ""

    def to_message(self) -> types_pb2.NamespaceIdentity:
        """Returns the identity as it travels."""
        return types_pb2.NamespaceIdentity(
            model_digest=self.model_digest,
            adapter_digest=self.adapter_digest,
            salt=self.salt,
            display_name=self.display_name,
        )


class NamespaceKey(NamedTuple):
    """What a namespace is opened by."""

    identity: NamespaceIdentity
    layout: PageLayout
