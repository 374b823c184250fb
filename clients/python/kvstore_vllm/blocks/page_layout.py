"""How a page of an engine's own layout is described to the store."""

from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from kvstore_client import OpaqueContent, PageLayout
from kvstore_vllm.identity.canonical import framed

MARK: Final = b"kvstore_vllm layout 1"


@dataclass(frozen=True)
class LayerFacts:
    """What one layer has in a page: its name, bytes of one rank, and type of element."""

    name: str
    page_bytes: int
    dtype: str


@dataclass(frozen=True)
class LayoutFacts:
    """What an engine's memory looks like, as both of a connector's halves see it.

    ``layers`` are in the order in which they are copied into a page. ``stride_order`` and
    ``layout_name`` are vLLM's: how blocks, heads and tokens lie in a layer.
    """

    page_tokens: int
    layers: tuple[LayerFacts, ...]
    layout_name: str = ""
    stride_order: tuple[int, ...] = ()
    tensor_parallel_size: int = 1

    @property
    def rank_page_bytes(self) -> int:
        """Bytes of a page that one rank has: rank r's begin at r times as many."""
        return sum(layer.page_bytes for layer in self.layers)


def layout_of(facts: LayoutFacts) -> PageLayout:
    """Returns the page layout: all ranks' bytes beside each other, which divide by no token.

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
