"""The description of an engine's page layout that the store gets."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from kvstore_client import OpaqueContent, PageLayout
from kvstore_client.engines.canonical import framed

MARK: Final = b"kvstore_vllm layout 1"


@dataclass(frozen=True)
class LayerFacts:
    """One layer in a page: its name, its bytes on one rank, and its element type."""

    name: str
    page_bytes: int
    dtype: str


@dataclass(frozen=True)
class LayoutFacts:
    """An engine's memory layout, as the scheduler half and the ranks see it.

    ``layers`` are in the order of the page. ``stride_order`` and ``layout_name`` are vLLM's:
    the order of blocks, heads and tokens in a layer.
    """

    page_tokens: int
    layers: tuple[LayerFacts, ...]
    layout_name: str = ""
    stride_order: tuple[int, ...] = ()
    tensor_parallel_size: int = 1

    @property
    def rank_page_bytes(self) -> int:
        """Bytes of a page on one rank: rank r's begin at r times as many."""
        return sum(layer.page_bytes for layer in self.layers)


def layout_of(facts: LayoutFacts) -> PageLayout:
    """Returns the page layout: all ranks' bytes beside each other, opaque to tokens.

    Raises ``ValueError`` for an engine without layers or bytes.
    """
    parts = [
        MARK,
        f"{facts.page_tokens} {facts.tensor_parallel_size}".encode(),
        facts.layout_name.encode(),
        repr(tuple(facts.stride_order)).encode(),
        *(f"{each.page_bytes} {each.dtype} {each.name}".encode() for each in facts.layers),
    ]
    fingerprint = sha256(framed(*parts)).digest()
    page_bytes = facts.rank_page_bytes * facts.tensor_parallel_size
    return PageLayout(facts.page_tokens, page_bytes, OpaqueContent(fingerprint))
