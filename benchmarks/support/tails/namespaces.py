"""The namespaces of tails.py: of the callers, and of the work beside them."""

from array import array
from collections.abc import Iterator

from kvstore_client import NamespaceIdentity, OpaqueContent, PageLayout
from kvstore_client.values.namespace_key import NamespaceKey
from support.rpc.worker import PAGE_TOKENS

# All namespaces share the arena of this page size.
PAGE_BYTES = 4096
# The prompts of different sources differ from this token on.
STRIDE = 1 << 24
# Above every token of a shared prompt.
FIRST_TOKEN = 1 << 20
LAYOUT = PageLayout(
    PAGE_TOKENS, PAGE_BYTES, OpaqueContent(b"a layout of the benchmark", divides_by_token=True)
)


def key_of(name: str) -> NamespaceKey:
    """Returns the key of a namespace by its name."""
    return NamespaceKey(NamespaceIdentity(name.encode()), LAYOUT)


def fresh_prompts(source: int, pages: int) -> Iterator[bytes]:
    """Yields the packed tokens of prompts of ``pages`` pages, no two of which begin alike.

    Each ``source`` has tokens of its own.
    """
    count = pages * PAGE_TOKENS
    begin = FIRST_TOKEN + source * STRIDE
    for first in range(begin, begin + STRIDE - count, count):
        yield array("I", range(first, first + count)).tobytes()
