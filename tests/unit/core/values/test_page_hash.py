"""Digests that say which page it is: each part of the identity counts."""

from dataclasses import replace

import pytest

from kvstore.core.values.layout import NamespaceIdentity, OpaqueContent, PagedContent, PageLayout
from kvstore.core.values.page_hash import DIGEST_BYTES, namespace_digest, page_digest, page_digests

IDENTITY = NamespaceIdentity(b"model", b"adapter", b"salt", "a name")
LAYOUT = PageLayout(4, 64, 1, PagedContent(1, 1, 2, "float32"))
BASE = namespace_digest("tenant", IDENTITY, LAYOUT)


def opaque(fingerprint: bytes, *, divides: bool) -> PageLayout:
    """Returns a layout of an engine's own."""
    return PageLayout(4, 64, 1, OpaqueContent(fingerprint, divides))


@pytest.mark.parametrize(
    "other",
    [
        namespace_digest("another", IDENTITY, LAYOUT),
        namespace_digest("tenant", replace(IDENTITY, model_digest=b"mode"), LAYOUT),
        namespace_digest("tenant", replace(IDENTITY, adapter_digest=b""), LAYOUT),
        namespace_digest("tenant", replace(IDENTITY, salt=b"other"), LAYOUT),
        # The same bytes, cut elsewhere.
        namespace_digest("tenantm", replace(IDENTITY, model_digest=b"odel"), LAYOUT),
        namespace_digest("tenant", IDENTITY, replace(LAYOUT, tensor_parallel_size=2)),
        namespace_digest("tenant", IDENTITY, LAYOUT, b"the tenant's key"),
        namespace_digest(
            "tenant", IDENTITY, PageLayout(4, 64, 1, PagedContent(1, 2, 1, "float32"))
        ),
        namespace_digest("tenant", IDENTITY, opaque(b"f", divides=False)),
        namespace_digest("tenant", IDENTITY, opaque(b"f", divides=True)),
        namespace_digest("tenant", IDENTITY, opaque(b"g", divides=True)),
    ],
)
def test_every_part_of_a_namespace_counts(other: bytes) -> None:
    """Tenant, model, adapter, salt and layout each make another namespace of it."""
    assert len(other) == DIGEST_BYTES
    assert other != BASE


def test_a_tenant_without_a_key_has_the_digest_of_older_stores() -> None:
    """Slabs of before tenants had keys stay good; two keys never meet."""
    assert BASE.hex().startswith("ae756864a91c3664")
    one, other = (namespace_digest("tenant", IDENTITY, LAYOUT, key) for key in (b"one", b"other"))
    assert one != other


def test_the_display_name_does_not_count() -> None:
    """A name for people makes no other namespace."""
    assert namespace_digest("tenant", replace(IDENTITY, display_name="x"), LAYOUT) == BASE


def test_a_digest_is_the_same_in_every_process() -> None:
    """A page on a disk is found again by whoever computes its digest anew."""
    assert page_digest(bytes(32), b"tokens").hex().startswith("958baf128dd52e03")


def test_a_chain_says_all_that_came_before() -> None:
    """The same page after another is another; pages that begin alike are alike so far."""
    first = list(page_digests(BASE, b"aaaabbbbcccc", 4))
    second = list(page_digests(BASE, b"aaaaddddcccc", 4))
    assert first[0] == second[0]
    assert not {*first[1:]} & {*second[1:]}
    assert list(page_digests(first[0], b"bbbbcccc", 4)) == first[1:]


def test_a_partial_page_is_another_than_the_full_one() -> None:
    """A page with fewer tokens has a digest of its own."""
    whole, part = (list(page_digests(BASE, tokens, 8)) for tokens in (b"x" * 16, b"x" * 12))
    assert whole[0] == part[0]
    assert whole[1] != part[1]
