"""Keys made from the secret of the hosts."""

import pytest

from kvstore.remote.secret.names import UnusableSecret
from kvstore.remote.secret.remote_keys import producer_secret
from kvstore.remote.secret.sealing import PageSealer

SECRET = bytes(range(32))


def test_kinds_of_machines_have_secrets_of_their_own() -> None:
    """Two kinds never meet, nor do hosts that name none; equal names do."""
    one, other = (producer_secret(SECRET, name) for name in ("h100", "h200"))
    assert len({SECRET, one, other, producer_secret(bytes(32), "h100")}) == 4
    assert producer_secret(SECRET, "h100") == one
    assert len({PageSealer(each).key_id for each in (SECRET, one, other)}) == 3


def test_a_secret_that_is_none_is_refused() -> None:
    """As everywhere."""
    with pytest.raises(UnusableSecret):
        producer_secret(b"short", "h100")
