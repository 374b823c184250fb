"""Pages of HiCache's host pool, and copies between them and the store's memory."""

import ctypes
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

# Facts of a pool that decide over the bytes of its pages. A pool has some of them.
FACTS = (
    *("layout", "dtype", "layer_num", "head_num", "head_dim", "page_size"),
    *("kv_lora_rank", "qk_rope_head_dim", "kv_cache_dim", "v_head_dim"),
)


class PoolPiece(NamedTuple):
    """A run of a page's bytes in the pool: its address and its length in bytes."""

    address: int
    size: int


class HostPages:
    """The pages of one of HiCache's host pools. Any thread may use it.

    ``page_bytes`` is the size of a page, all its pieces together, and ``device`` the device of
    the pool that it is copied to.
    """

    def __init__(self, pool: Any) -> None:  # noqa: ANN401  # a HostKVCache
        self._pool = pool
        self.device = getattr(getattr(pool, "device_pool", None), "device", "cpu")
        self.page_tokens = int(pool.page_size)
        self.page_bytes = int(pool.size_per_token) * self.page_tokens

    def facts(self) -> dict[str, str]:
        """Returns the facts that decide over a page's bytes, each as text."""
        return {name: str(getattr(self._pool, name)) for name in FACTS if hasattr(self._pool, name)}

    def pieces(self, indices: Any) -> list[list[PoolPiece]]:  # noqa: ANN401  # a tensor of token slots
        """Returns the pieces of each page at these token slots, in one order for all pages.

        Raises ``ValueError`` if they are not whole pages of ``page_bytes``.
        """
        count, rest = divmod(len(indices), self.page_tokens)
        addresses, sizes = self._pool.get_page_buffer_meta(indices)
        every = [PoolPiece(*each) for each in zip(addresses, sizes, strict=True)]
        each_page = len(every) // count if count else 0
        pages = [every[i : i + each_page] for i in range(0, len(every), max(each_page, 1))]
        sizes_of = {sum(piece.size for piece in page) for page in pages}
        if rest or len(pages) != count or sizes_of - {self.page_bytes}:
            raise ValueError(
                f"{len(indices)} token slots of HiCache's pool are {len(pages)} pages of "
                f"{sorted(sizes_of)} bytes, not {count} of {self.page_bytes}"
            )
        return pages


def copy_out(page: memoryview, pieces: Iterable[PoolPiece]) -> None:
    """Copies a page of the store into its pieces in the pool."""
    source = _address(page)
    for piece in pieces:
        ctypes.memmove(piece.address, source, piece.size)
        source += piece.size


def copy_in(page: memoryview, pieces: Sequence[PoolPiece]) -> None:
    """Copies the pieces of a page in the pool into a page of the store."""
    target = _address(page)
    for piece in pieces:
        ctypes.memmove(target, piece.address, piece.size)
        target += piece.size


def _address(page: memoryview) -> int:
    """Returns the address of a writable page."""
    return ctypes.addressof(ctypes.c_char.from_buffer(page))
