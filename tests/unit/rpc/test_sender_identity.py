"""The sender of a call, by its metadata."""

from hashlib import sha256
from typing import Any

import pytest

from kvstore.core import Caller, Identity
from kvstore.errors import CredentialRequired, InvalidField
from kvstore.rpc.pipeline import LEASE_SECRET, Call, digest_of
from kvstore.rpc.sender_identity import (
    Metadata,
    Sender,
    certificate_names,
    credential_of,
    secret_of,
)
from kvstore.service.tenancy.credentials import Credentials
from kvstore.service.tenancy.tenant_lookup import Tenant, Tenants

WHO = Identity("alice")
LEASE_ID = bytes(16)


def test_a_credential_is_a_bearer_token() -> None:
    """A credential is what follows the scheme "Bearer", in upper or lower case."""
    assert credential_of([("authorization", "Bearer abc")]) == "abc"
    assert credential_of([("x", "y"), ("authorization", "bearer a b")]) == "a b"
    assert credential_of([("x", "y")]) is None


@pytest.mark.parametrize(
    "metadata",
    [
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", "Basic abc")],
        [("authorization", b"Bearer abc")],
        [("authorization", "Bearer abc"), ("authorization", "Bearer abc")],
    ],
)
def test_what_is_not_one_credential_is_refused(metadata: Metadata) -> None:
    """An empty header, another scheme and two headers are all refused."""
    with pytest.raises(CredentialRequired):
        credential_of(metadata)


def call_with(*secrets: bytes) -> Call:
    """Returns a call that came with some secrets."""
    return Call(WHO, lease_secret=secret_of([(LEASE_SECRET, each) for each in secrets]))


def test_a_secret_has_bounds() -> None:
    """Secrets of 16 to 64 bytes are taken. The core gets their digests, and never a secret."""
    for length in (16, 64):
        caller = call_with(bytes(length)).caller(LEASE_ID, 3)
        assert caller == Caller(WHO, LEASE_ID, sha256(bytes(length)).digest(), 3)


@pytest.mark.parametrize("lengths", [[], [0], [15], [65], [16, 16]])
def test_other_secrets_are_refused(lengths: list[int]) -> None:
    """A secret that is missing, too short, too long, or there twice is refused, not repeated."""
    with pytest.raises(InvalidField) as caught:
        call_with(*map(bytes, lengths)).caller(LEASE_ID, 3)
    assert caught.value.metadata["field"] == LEASE_SECRET


def test_a_lease_may_be_revoked_without_a_secret() -> None:
    """Then the digest is empty, which no secret has; one that can be none is refused."""
    assert call_with().revoker(LEASE_ID, None) == Caller(WHO, LEASE_ID, b"", None)
    with_secret = Caller(WHO, LEASE_ID, digest_of(bytes(16)), None)
    assert call_with(bytes(16)).revoker(LEASE_ID, None) == with_secret
    for secrets in ((bytes(15),), (bytes(16), bytes(16))):
        with pytest.raises(InvalidField):
            call_with(*secrets).revoker(LEASE_ID, None)


@pytest.mark.parametrize("lease_id", [b"", bytes(15), bytes(17)])
def test_what_is_no_id_of_a_lease_is_refused(lease_id: bytes) -> None:
    """With a secret and without."""
    for call in (call_with(bytes(16)).caller, call_with().revoker):
        with pytest.raises(InvalidField) as caught:
            call(lease_id, None)
        assert caught.value.metadata["field"] == "lease_id"


@pytest.mark.parametrize(
    ("properties", "names"),
    [
        ({}, []),
        ({"x509_common_name": [b"alice"]}, ["alice"]),
        ({"x509_common_name": [b"alice"], "peer_dns": [b"a.example", b"b"]}, ["a.example", "b"]),
        (
            {"x509_common_name": [b"c"], "peer_dns": [b"d"], "peer_uri": [b"spiffe://x/alice"]},
            ["spiffe://x/alice"],
        ),
        # A common name can be anything: it does not pass for a URI.
        ({"x509_common_name": [b"spiffe://x/alice"]}, []),
        ({"peer_dns": [b"spiffe://x/alice", b"d"]}, ["d"]),
        ({"peer_ip": [b"10.0.0.1"], "peer_email": [b"a@b"], "x509_pem_cert": [b"..."]}, []),
    ],
)
def test_a_certificate_is_named_by_the_best_that_it_has(
    properties: dict[str, list[bytes]], names: list[str]
) -> None:
    """A certificate names a tenant by its URIs, else its DNS names, else its common name."""
    assert certificate_names(properties) == names


class Local:
    """The context of a call over a unix socket."""

    def peer(self) -> str:
        """Names the peer."""
        return "unix:"


def test_a_sender_is_known_by_the_tenants_of_now() -> None:
    """A call that waited while the tenants changed is its new tenant's, or nobody's."""
    context: Any = Local()
    digest = frozenset({sha256(b"token").digest()})
    credentials = Credentials(frozenset(), Tenants([Tenant("alice", token_digests=digest)]))
    sender = Sender([("authorization", "Bearer token")], credentials)
    assert sender.tenant == "alice"
    assert sender.identity(context) == Identity("alice")
    credentials.tenants = Tenants([Tenant("bob", token_digests=digest)])
    assert sender.identity(context) == Identity("bob")
    credentials.tenants = Tenants()
    with pytest.raises(CredentialRequired):
        sender.identity(context)
    stranger = Sender([("authorization", "Bearer token")], credentials)
    assert stranger.tenant is None
    credentials.tenants = Tenants([Tenant("carol", token_digests=digest)])
    assert stranger.identity(context) == Identity("carol")
