"""Names of pages that outlive the index: chained digests over a namespace's whole identity.

A page's tokens say what it is only below its parent and in its namespace. Its digest
says so by itself, for tiers that keep pages over a restart or share them between hosts.
BLAKE2b (RFC 7693) with 256 bits, so that nobody finds two prompts with one digest by
trying: whoever may choose tokens may try as often as they like.
"""

from collections.abc import Iterator
from dataclasses import astuple
from hashlib import blake2b

from kvstore.core.layout import NamespaceIdentity, PageLayout

DIGEST_BYTES = 32
# BLAKE2b's personalisation: the two kinds never collide, nor do those of another version.
_NAMESPACE = b"kvs-namespace-1"
_PAGE = b"kvs-page-1"


def namespace_digest(tenant: str, identity: NamespaceIdentity, layout: PageLayout) -> bytes:
    """Return the digest of all that decides who may share pages: ``DIGEST_BYTES`` bytes.

    Tenant, model, adapter, salt and every field of the layout count, each with its
    length before it. The display name does not.
    """
    content = layout.content
    parts = (
        *identity.key(tenant),
        *(layout.page_tokens, layout.page_bytes, layout.tensor_parallel_size),
        *(type(content).__name__, *astuple(content)),
    )
    digest = blake2b(digest_size=DIGEST_BYTES, person=_NAMESPACE)
    for part in parts:
        data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()


def page_digest(parent: bytes, tokens: bytes) -> bytes:
    """Return a page's digest from its parent's and its own tokens, little-endian uint32.

    The parent of a sequence's first page is its namespace's digest. A partial page has
    fewer tokens, hence another digest than the full page that begins with them.
    """
    return blake2b(parent + tokens, digest_size=DIGEST_BYTES, person=_PAGE).digest()


def page_digests(parent: bytes, tokens: bytes, page_token_bytes: int) -> Iterator[bytes]:
    """Yield the digest of each page of ``tokens`` below ``parent``, the last however full.

    ``page_token_bytes`` is how many bytes the tokens of a whole page take. About one
    microsecond a page: who needs fewer stops early.
    """
    for start in range(0, len(tokens), page_token_bytes):
        parent = page_digest(parent, tokens[start : start + page_token_bytes])
        yield parent
