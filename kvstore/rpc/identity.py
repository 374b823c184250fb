"""Who calls, from a call's metadata: the credential, and a lease's secret."""

from collections.abc import Iterable
from typing import TypeAlias

import grpc

from kvstore.core.caller import Caller, Identity
from kvstore.errors import CredentialRequired, InvalidField
from kvstore.rpc import fields
from kvstore.service.credentials import Credentials
from kvstore.v1 import prefix_cache_pb2

AUTHORIZATION = "authorization"
SCHEME = "bearer"
LEASE_SECRET = "kvstore-lease-secret-bin"  # noqa: S105 - the name of the metadata key, not a secret
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 64

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]


def credential_of(metadata: Metadata) -> str:
    """Return the credential of ``authorization: Bearer CREDENTIAL``.

    Raises :class:`CredentialRequired` where there is none, or more than one.
    """
    values = [value for key, value in metadata if key == AUTHORIZATION]
    if len(values) == 1 and isinstance(values[0], str):
        scheme, _, credential = values[0].partition(" ")
        if scheme.lower() == SCHEME and credential:
            return credential
    raise CredentialRequired


def secret_of(metadata: Metadata) -> bytes | None:
    """Return the lease's secret, or None where the call has none.

    Raises :class:`InvalidField` where its length is out of bounds, or there are
    more than one.
    """
    values = [value for key, value in metadata if key == LEASE_SECRET]
    if not values:
        return None
    if len(values) > 1 or not isinstance(values[0], bytes):
        raise InvalidField(field=LEASE_SECRET, why="more than one")
    return fields.checked_bytes(
        LEASE_SECRET, values[0], least=MIN_SECRET_BYTES, most=MAX_SECRET_BYTES
    )


class Callers:
    """Reads from a call who makes it. Thread-safe; changes nothing.

    Raises :class:`CredentialRequired` for a call without a known credential.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def identity(self, context: grpc.ServicerContext) -> Identity:
        """Return whose call it is."""
        return self._credentials.identify(credential_of(context.invocation_metadata()))

    def member(self, context: grpc.ServicerContext, lease_id: bytes, epoch: int | None) -> Caller:
        """Return who calls under a lease, whose secret MUST come with the call.

        Raises :class:`InvalidField` for an id or a secret that can be none. That
        they are a lease's is the store's to check.
        """
        secret = secret_of(context.invocation_metadata())
        if secret is None:
            raise InvalidField(field=LEASE_SECRET, why="missing")
        return Caller(self.identity(context), fields.random_id("lease_id", lease_id), secret, epoch)

    def revoker(self, context: grpc.ServicerContext, lease_id: bytes, epoch: int | None) -> Caller:
        """Return who ends a lease; an admin does so without its secret.

        Without one the secret is empty, which no lease has.
        """
        secret = secret_of(context.invocation_metadata()) or b""
        return Caller(self.identity(context), fields.random_id("lease_id", lease_id), secret, epoch)

    def worker(self, context: grpc.ServicerContext, caller: prefix_cache_pb2.Caller) -> Caller:
        """Return who calls in the request path, where a message says it."""
        return self.member(context, caller.lease_id, caller.store_epoch)
