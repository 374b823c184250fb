"""The layout of one page of a model's keys and values, and its name. Needs no torch."""

from dataclasses import dataclass
from math import prod
from typing import Final, NamedTuple


class PageRef(NamedTuple):
    """The place of one page: the key of its extent and its slot there."""

    extent: int
    slot: int


DTYPE_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class PageLayout:
    """The layout of one page: page-first, contiguous, keys before values.

    A page is ``[layers, kv_factor, page_tokens, kv_heads, head_dim]`` of ``dtype``, one of
    ``DTYPE_BYTES``. Raises ``ValueError`` for another dtype or a size below one.
    """

    layer_count: int
    kv_head_count: int
    head_dim: int
    dtype: str
    page_tokens: int
    kv_factor: int = 2

    def __post_init__(self) -> None:
        """Refuses an unknown dtype, and sizes below one."""
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype {self.dtype!r} is none of {sorted(DTYPE_BYTES)}")
        if min(self.page_shape) < 1:
            raise ValueError(f"every size of a page is at least 1, not {self.page_shape}")

    @property
    def page_shape(self) -> tuple[int, int, int, int, int]:
        """The shape of one page, in values."""
        return (
            self.layer_count,
            self.kv_factor,
            self.page_tokens,
            self.kv_head_count,
            self.head_dim,
        )

    @property
    def page_bytes(self) -> int:
        """The size of one page, in bytes."""
        return prod(self.page_shape) * DTYPE_BYTES[self.dtype]

    @property
    def rows_per_page(self) -> int:
        """Rows of one page: one for each layer's keys and one for its values."""
        return self.layer_count * self.kv_factor

    @property
    def token_values(self) -> int:
        """Values of one token in one row: all its heads of keys, or of values."""
        return self.kv_head_count * self.head_dim

    @property
    def token_bytes(self) -> int:
        """The size of one token in one row, in bytes."""
        return self.token_values * DTYPE_BYTES[self.dtype]

    def pages_for(self, tokens: int) -> int:
        """Returns how many pages hold ``tokens`` tokens; the last page may be partial."""
        return -(-tokens // self.page_tokens)
