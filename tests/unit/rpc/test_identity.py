"""The caller's credential, lease secret and certificate names, read from a call."""

import pytest

from kvstore.errors import CredentialRequired, InvalidField
from kvstore.rpc.identity import (
    LEASE_SECRET,
    Metadata,
    certificate_names,
    credential_of,
    secret_of,
)


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


def test_a_secret_is_optional_and_has_bounds() -> None:
    """A secret has 16 to 64 bytes, and a call may be without one."""
    assert secret_of([]) is None
    for length in (16, 64):
        assert secret_of([(LEASE_SECRET, bytes(length))]) == bytes(length)


@pytest.mark.parametrize("lengths", [[0], [15], [65], [16, 16]])
def test_other_secrets_are_refused(lengths: list[int]) -> None:
    """A secret that is too short, too long or sent twice is refused with its field's name."""
    with pytest.raises(InvalidField) as caught:
        secret_of([(LEASE_SECRET, bytes(length)) for length in lengths])
    assert caught.value.metadata["field"] == LEASE_SECRET


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
