"""Credentials."""

import os
from hashlib import sha256

import pytest

from kvstore.core.values.requests import Identity
from kvstore.errors import CredentialRequired
from kvstore.service.tenancy.credentials import Credentials, Known
from kvstore.service.tenancy.tenant_lookup import Tenant, Tenants

TOKEN = "kvs_a token of alice"  # noqa: S105 - nobody's
ALICE = Tenant(
    "alice",
    uids=frozenset({1000, 7}),
    token_digests=frozenset({sha256(TOKEN.encode()).digest()}),
    certificate_names=frozenset({"spiffe://example/alice", "alice.example"}),
)
BOB = Tenant("bob", certificate_names=frozenset({"bob.example"}), admin=True)


def test_a_credential_names_the_tenant_of_its_uid() -> None:
    """A caller with a uid's credential is that uid's tenant, and nobody else."""
    credentials = Credentials(frozenset({7}))
    assert credentials.identify(credentials.issue(1000)).identity == Identity(
        "uid-1000", admin=False
    )
    assert credentials.identify(credentials.issue(7)).identity == Identity("uid-7", admin=True)


def test_the_servers_own_uid_and_root_are_admins() -> None:
    """By default the process's uid and root administer."""
    credentials = Credentials()
    assert credentials.identity_of(os.geteuid()).admin
    assert credentials.identity_of(0).admin
    assert not credentials.identity_of(4_000_000_000).admin


def test_a_uid_has_one_credential() -> None:
    """Asking again answers the same."""
    credentials = Credentials()
    assert credentials.issue(1000) == credentials.issue(1000)
    assert credentials.issue(1000) != credentials.issue(1001)


def test_credentials_are_of_one_store_alone() -> None:
    """Another store, or this one with other memory, does not know them."""
    credential = Credentials().issue(1000)
    with pytest.raises(CredentialRequired):
        Credentials().identify(credential)


def test_a_store_that_goes_on_knows_the_credentials_of_before() -> None:
    """Also those that the earlier server issued, which this one never saw."""
    key = b"k" * 32
    credential = Credentials(key=key).issue(1000)
    assert Credentials(key=key).identify(credential).identity == Identity("uid-1000")


MAC = Credentials(key=b"k" * 32).issue(1000).partition(".")[2]


@pytest.mark.parametrize(
    "guess",
    [
        *("", "x", "\udcff", "uid-1000", f"uid-1001.{MAC}", f"uid-01000.{MAC}", f"uid-1000.{MAC}="),
        *(f"uid-1000.{MAC[:-1]}", f"uid-1000.{MAC[::-1]}", f"uid-{'1' * 5000}.{MAC}"),
        *(f"uid-\u0661\u0660\u0660\u0660.{MAC}", f" uid-1000.{MAC}"),
    ],
)
def test_a_guess_is_refused(guess: str) -> None:
    """A credential that was not issued identifies nobody, whatever it is made of."""
    credentials = Credentials(key=b"k" * 32)
    credentials.issue(1000)
    with pytest.raises(CredentialRequired):
        credentials.identify(guess)


def test_a_uid_belongs_to_the_tenant_that_names_it() -> None:
    """A named uid is its tenant, an admin where it was one anyway; others stay their own."""
    credentials = Credentials(frozenset({7}), Tenants([ALICE]))
    identities = [credentials.identify(credentials.issue(uid)).identity for uid in (1000, 7, 1001)]
    assert identities == [
        Identity("alice"),
        Identity("alice", admin=True),
        Identity("uid-1001"),
    ]


def test_a_token_is_good_anywhere_a_uid_s_credential_on_its_host() -> None:
    """A credential of the kernel counts on unix sockets alone; a token counts on both."""
    credentials = Credentials(frozenset(), Tenants([ALICE]))
    assert credentials.identify(TOKEN) == Known(Identity("alice"), local_only=False)
    uid_credential = credentials.issue(1000)
    assert credentials.identify(uid_credential) == Known(Identity("alice"), local_only=True)


def test_a_certificate_is_its_tenant_s() -> None:
    """Any of its names is enough; DNS names have no case; names of two tenants are none."""
    credentials = Credentials(tenants=Tenants([ALICE, BOB]))
    assert credentials.identify_certificate(["x", "Alice.EXAMPLE"]) == Identity("alice")
    assert credentials.identify_certificate(["bob.example"]) == Identity("bob", admin=True)
    assert credentials.identify_certificate(["spiffe://example/ALICE"]) is None
    assert credentials.identify_certificate([]) is None
    with pytest.raises(CredentialRequired, match="several tenants"):
        credentials.identify_certificate(["alice.example", "bob.example"])


def test_who_is_who_may_change() -> None:
    """After a change of the tenants a token that is gone is nobody's, a uid is its new tenant's."""
    credentials = Credentials(frozenset(), Tenants([ALICE]))
    credential = credentials.issue(1000)
    credentials.tenants = Tenants([Tenant("carol", uids=frozenset({1000}))])
    assert credentials.identify(credential).identity == Identity("carol")
    with pytest.raises(CredentialRequired):
        credentials.identify(TOKEN)
