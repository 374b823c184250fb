"""Names of pages that outlive the index: chained digests over a namespace's whole identity.

A page's tokens identify it only below its parent and within its namespace. Its digest
identifies it anywhere. Tiers need that if they keep pages over a restart or share them
between hosts. The digest is BLAKE2b (RFC 7693) with 256 bits: callers choose tokens, so
nobody must be able to find two prompts with one digest by trying.
"""

from collections.abc import Iterator
from dataclasses import astuple
from hashlib import blake2b

from kvstore.core.values.layout import NamespaceIdentity, PageLayout

DIGEST_BYTES = 32
# BLAKE2b's personalisation separates the two kinds, and later versions from this one.
_NAMESPACE = b"kvs-namespace-1"
_PAGE = b"kvs-page-1"


def namespace_digest(
    tenant: str, identity: NamespaceIdentity, layout: PageLayout, tenant_key: bytes = b""
) -> bytes:
    """Returns the digest of everything that decides who may share pages: ``DIGEST_BYTES`` bytes.

    Covers the tenant, the model, the adapter, the salt, every field of the layout, and the
    tenant's key if it has one, each with its length before it. Leaves out the display name.
    """
    content = layout.content
    parts = (
        *identity.key(tenant),
        *(layout.page_tokens, layout.page_bytes, layout.tensor_parallel_size),
        *(type(content).__name__, *astuple(content)),
        # Without a key the digest is that of stores which knew none: their slabs stay good.
        *([tenant_key] if tenant_key else ()),
    )
    digest = blake2b(digest_size=DIGEST_BYTES, person=_NAMESPACE)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def page_digest(parent: bytes, tokens: bytes) -> bytes:
    """Returns a page's digest, from its parent's digest and its own tokens (little-endian uint32).

    The parent of a sequence's first page is the digest of its namespace. A partial page has
    fewer tokens, so its digest differs from that of the full page that begins with them.
    """
    return blake2b(parent + tokens, digest_size=DIGEST_BYTES, person=_PAGE).digest()


def page_digests(parent: bytes, tokens: bytes, page_token_bytes: int) -> Iterator[bytes]:
    """Yields the digest of each page of ``tokens`` below ``parent``. The last may be partial.

    ``page_token_bytes`` is the number of bytes of a whole page's tokens. A page costs about
    one microsecond, so a caller that needs fewer pages stops early.
    """
    for start in range(0, len(tokens), page_token_bytes):
        parent = page_digest(parent, tokens[start : start + page_token_bytes])
        yield parent
