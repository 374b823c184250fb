"""Who calls, from a call's connection and metadata: certificate, token, a lease's secret."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

import grpc

from kvstore.core import Caller, Identity
from kvstore.errors import CredentialRequired, InvalidField
from kvstore.rpc.wire import fields
from kvstore.service.tenancy.credentials import Credentials
from kvstore.v1 import prefix_cache_pb2

AUTHORIZATION = "authorization"
SCHEME = "bearer"
LEASE_SECRET = "kvstore-lease-secret-bin"  # noqa: S105 - the name of the metadata key, not a secret
MIN_SECRET_BYTES = 16
MAX_SECRET_BYTES = 64
# How gRPC names a peer of a unix socket, and what it found in a peer's certificate.
UNIX_PEER = "unix:"
CERTIFICATE_URI = "peer_uri"
CERTIFICATE_NAMES = (CERTIFICATE_URI, "peer_dns", "x509_common_name")

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]


def credential_of(metadata: Metadata) -> str | None:
    """Returns the credential of ``authorization: Bearer CREDENTIAL``, None without the header.

    Raises :class:`CredentialRequired` where it says anything else, or is there twice.
    """
    values = [value for key, value in metadata if key == AUTHORIZATION]
    if not values:
        return None
    if len(values) == 1 and isinstance(values[0], str):
        scheme, _, credential = values[0].partition(" ")
        if scheme.lower() == SCHEME and credential:
            return credential
    raise CredentialRequired


def secret_of(metadata: Metadata) -> bytes | None:
    """Returns the lease's secret, or None where the call has none.

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


def is_local(context: grpc.ServicerContext) -> bool:
    """Returns whether a call came over a unix socket, by what gRPC says of its connection."""
    return str(context.peer()).startswith(UNIX_PEER)


def certificate_names(properties: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Returns what names the peer in the certificate that gRPC verified; none without one.

    ``properties`` are the connection's, from ``auth_context``. Its URIs, such as SPIFFE
    ids; else its DNS names; else its common name, which RFC 6125 (section 6.4.4) counts
    only where there are no others. What is no URI and looks like one does not count.
    """
    for key in CERTIFICATE_NAMES:
        names = [each.decode(errors="replace") for each in properties.get(key, ())]
        if names:
            return [each for each in names if key == CERTIFICATE_URI or ":" not in each]
    return []


class Callers:
    """Reads from a call who makes it. Thread-safe; changes nothing.

    A token or an attached uid's credential says it, or a client's certificate. A
    certificate that names no tenant says nothing; where both say something they have
    to agree.

    Raises :class:`CredentialRequired` for a call that nobody known makes.
    """

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def identity(self, context: grpc.ServicerContext) -> Identity:
        """Returns whose call it is."""
        local = is_local(context)
        certified = None
        if not local:
            # The stubs have bytes for what are lists of them.
            properties = cast("Mapping[str, Iterable[bytes]]", context.auth_context())
            names = certificate_names(properties)
            certified = self._credentials.identify_certificate(names)
        credential = credential_of(context.invocation_metadata())
        if credential is None:
            if certified is None:
                raise CredentialRequired
            return certified
        identity = self._credentials.identify(credential, local=local)
        if certified not in (None, identity):
            raise CredentialRequired(why="the token is not of the certificate's tenant")
        return identity

    def tenant_of(self, metadata: Metadata) -> str | None:
        """Returns whose call it is by its metadata alone; None where they do not say.

        Good enough for a place in a line: how the call came is not looked at.
        """
        try:
            credential = credential_of(metadata)
            return None if credential is None else self._credentials.identify(credential).tenant
        except CredentialRequired:
            return None

    def member(self, context: grpc.ServicerContext, lease_id: bytes, epoch: int | None) -> Caller:
        """Returns who calls under a lease, whose secret MUST come with the call.

        Raises :class:`InvalidField` for an id or a secret that can be none. That
        they are a lease's is the store's to check.
        """
        secret = secret_of(context.invocation_metadata())
        if secret is None:
            raise InvalidField(field=LEASE_SECRET, why="missing")
        return Caller(self.identity(context), fields.random_id("lease_id", lease_id), secret, epoch)

    def revoker(self, context: grpc.ServicerContext, lease_id: bytes, epoch: int | None) -> Caller:
        """Returns who ends a lease; an admin does so without its secret.

        Without one the secret is empty, which no lease has.
        """
        secret = secret_of(context.invocation_metadata()) or b""
        return Caller(self.identity(context), fields.random_id("lease_id", lease_id), secret, epoch)

    def worker(self, context: grpc.ServicerContext, caller: prefix_cache_pb2.Caller) -> Caller:
        """Returns who calls in the request path, where a message says it."""
        return self.member(context, caller.lease_id, caller.store_epoch)

    def tokens(self, context: grpc.ServicerContext) -> bytes | None:
        """Returns the tokens of a call's sequence that came beside its message: none over gRPC."""
        del context
        return None
