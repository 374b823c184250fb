"""Keys that are made from the secret of the hosts that share pages."""

from typing import Final

from kvstore.remote.secret.names import SECRET_BYTES, checked_secret, keyed_digest

# Labels: BLAKE2b's personalisation, one for each use of the secret.
_PRODUCER: Final = b"kvs-r-producer-1"


def producer_secret(secret: bytes, producer: str) -> bytes:
    """Returns the secret of the hosts whose machines are of one kind, by its name.

    Hosts of two kinds have other names, seals and key ids, so they never meet.
    """
    return keyed_digest(checked_secret(secret), _PRODUCER, SECRET_BYTES, producer.encode())
