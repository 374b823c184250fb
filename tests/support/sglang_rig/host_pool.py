"""A host pool as HiCache has one: keys and values of a page lie far apart."""

from array import array
from collections.abc import Sequence

KEYS, VALUES = 0, 1


class HostPool:
    """A pool of ``page_count`` pages of ``page_size`` tokens, each of ``token_bytes`` a half.

    It has the attributes and the method that the storage reads of SGLang's ``HostKVCache``.
    """

    layout = "page_first"
    dtype = "torch.float32"
    layer_num = 2
    head_num = 2
    head_dim = 4

    def __init__(self, page_count: int, page_size: int = 4, token_bytes: int = 16) -> None:
        self.page_size = page_size
        self.size_per_token = 2 * token_bytes
        self._half = page_size * token_bytes
        self._memory = array("B", bytes(2 * page_count * self._half))
        self._page_count = page_count

    def indices(self, *pages: int) -> list[int]:
        """Returns the token slots of pages."""
        size = self.page_size
        return [slot for page in pages for slot in range(page * size, (page + 1) * size)]

    def get_page_buffer_meta(self, indices: Sequence[int]) -> tuple[list[int], list[int]]:
        """Returns the addresses and sizes of each page's keys and values, as SGLang does."""
        base, _ = self._memory.buffer_info()
        places = [
            base + self._offset(slot // self.page_size, half)
            for slot in indices[:: self.page_size]
            for half in (KEYS, VALUES)
        ]
        return places, [self._half] * len(places)

    def write(self, page: int, content: int) -> None:
        """Fills a page: its keys with ``content``, its values with the byte after it."""
        for half in (KEYS, VALUES):
            start = self._offset(page, half)
            filled = bytes([(content + half) % 256]) * self._half
            self._memory[start : start + self._half] = array("B", filled)

    def read(self, page: int) -> set[tuple[int, int]]:
        """Returns the pairs of bytes that a page's keys and values have."""
        halves = [
            set(self._memory[start : start + self._half])
            for start in (self._offset(page, KEYS), self._offset(page, VALUES))
        ]
        return {(key, value) for key in halves[KEYS] for value in halves[VALUES]}

    def _offset(self, page: int, half: int) -> int:
        return (half * self._page_count + page) * self._half
