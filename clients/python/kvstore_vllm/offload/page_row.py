"""A page as vLLM's offloading worker writes it: one row of all ranks' bytes."""

import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from kvstore_client import OpaqueContent, PageLayout
from kvstore_client.engines.canonical import framed

MARK: Final = b"kvstore_vllm row 1"
# vLLM's region rounds a row up to whole pages of memory (SharedOffloadRegion).
ALIGNMENT: Final = mmap.PAGESIZE


@dataclass(frozen=True)
class PageRow:
    """The bytes of one page: ``rank_bytes`` of each of ``copies`` ranks, and padding.

    ``copies`` is 1 if all ranks have the same bytes, as with MLA: rank 0 writes them then. It is
    also 1 for vLLM's canonical layout, in which ``rank_bytes`` are those of all ranks together.
    ``facts`` describe the layers by groups; engines with other facts share no pages.
    """

    page_tokens: int
    rank_bytes: int
    copies: int
    facts: Sequence[str]

    @property
    def row_bytes(self) -> int:
        """The bytes of a page, with padding."""
        return -(-self.rank_bytes * self.copies // ALIGNMENT) * ALIGNMENT

    @property
    def layout(self) -> PageLayout:
        """The layout that the store gets. Raises ``ValueError`` for an engine without bytes."""
        numbers = f"{self.page_tokens} {self.rank_bytes} {self.copies}".encode()
        parts = (each.encode() for each in self.facts)
        fingerprint = sha256(framed(MARK, numbers, *parts)).digest()
        return PageLayout(self.page_tokens, self.row_bytes, OpaqueContent(fingerprint))

    def begin(self, rank: int) -> int:
        """Returns the first byte of a rank's part."""
        return rank * self.rank_bytes if self.copies > 1 else 0
