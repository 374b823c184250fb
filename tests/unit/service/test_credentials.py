"""Credentials."""

import os

import pytest

from kvstore.core.caller import Identity
from kvstore.errors import CredentialRequired
from kvstore.service.credentials import Credentials


def test_a_credential_names_the_tenant_of_its_uid() -> None:
    """Whoever shows a uid's credential is that uid's tenant, and nobody else."""
    credentials = Credentials(frozenset({7}))
    assert credentials.identify(credentials.issue(1000)) == Identity("uid-1000", admin=False)
    assert credentials.identify(credentials.issue(7)) == Identity("uid-7", admin=True)


def test_the_servers_own_uid_and_root_are_admins() -> None:
    """By default the process's uid and root administer."""
    credentials = Credentials()
    assert credentials.identity_of(os.geteuid()).admin
    assert credentials.identity_of(0).admin
    assert not credentials.identity_of(4_000_000_000).admin


def test_a_uid_has_one_credential() -> None:
    """Asking again answers the same, so that the table is bounded by the uids."""
    credentials = Credentials()
    assert credentials.issue(1000) == credentials.issue(1000)
    assert credentials.issue(1000) != credentials.issue(1001)


def test_credentials_are_of_one_store_alone() -> None:
    """Another store, or this one after a restart, does not know them."""
    credential = Credentials().issue(1000)
    with pytest.raises(CredentialRequired):
        Credentials().identify(credential)


@pytest.mark.parametrize("guess", ["", "x", "\udcff", "uid-1000"])
def test_a_guess_is_refused(guess: str) -> None:
    """What was not issued identifies nobody, whatever it is made of."""
    credentials = Credentials()
    credentials.issue(1000)
    with pytest.raises(CredentialRequired):
        credentials.identify(guess)
