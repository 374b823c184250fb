"""The sender of a call over gRPC, by its metadata and its connection."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias, cast

import grpc

from kvstore.core import Identity
from kvstore.errors import CredentialRequired
from kvstore.rpc.pipeline import LEASE_SECRET
from kvstore.service.tenancy.credentials import Credentials, Known

AUTHORIZATION = "authorization"
SCHEME = "bearer"
# The name that gRPC gives a peer of a unix socket, and the names in a peer's certificate.
UNIX_PEER = "unix:"
CERTIFICATE_URI = "peer_uri"
CERTIFICATE_NAMES = (CERTIFICATE_URI, "peer_dns", "x509_common_name")

Metadata: TypeAlias = Iterable[tuple[str, str | bytes]]


def credential_of(metadata: Metadata) -> str | None:
    """Returns the credential of ``authorization: Bearer CREDENTIAL``, None without the header.

    Raises :class:`CredentialRequired` for any other value, and for two headers.
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
    """Returns the lease's secret, or None if the call has none.

    Nothing is checked here. Of several the result is empty, which no lease's secret is.
    """
    values = [value for key, value in metadata if key == LEASE_SECRET]
    if not values:
        return None
    return values[0] if len(values) == 1 and isinstance(values[0], bytes) else b""


def is_local(context: grpc.ServicerContext) -> bool:
    """Returns whether a call came over a unix socket, by what gRPC says of its connection."""
    return str(context.peer()).startswith(UNIX_PEER)


def certificate_names(properties: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Returns the names in the peer's certificate, which gRPC verified; none without one.

    ``properties`` are the connection's, from ``auth_context``. The names are its URIs, such as
    SPIFFE ids, else its DNS names, else its common name, which RFC 6125 (section 6.4.4) counts
    only if there are no others. A name that is no URI and looks like one does not count.
    """
    for key in CERTIFICATE_NAMES:
        names = [each.decode(errors="replace") for each in properties.get(key, ())]
        if names:
            return [each for each in names if key == CERTIFICATE_URI or ":" not in each]
    return []


class Sender:
    """The sender of one call, by a credential or token, or by a client's certificate.

    It is made when the call arrives, from the metadata alone, and looks the credential up then.
    Raises nothing then. ``tenant`` is good enough for a place in a queue: the connection has not
    been looked at. It is None if the metadata name nobody.
    """

    __slots__ = ("_credentials", "_has_credential", "_known", "_known_by", "metadata", "tenant")

    def __init__(self, metadata: Metadata, credentials: Credentials) -> None:
        self.metadata = metadata
        self._credentials = credentials
        self._look_up()
        self.tenant = None if self._known is None else self._known.identity.tenant

    def _look_up(self) -> None:
        self._known_by = self._credentials.tenants
        self._has_credential = True
        self._known: Known | None = None
        try:
            credential = credential_of(self.metadata)
            if credential is None:
                self._has_credential = False
            else:
                self._known = self._credentials.identify(credential)
        except CredentialRequired:
            pass

    def identity(self, context: grpc.ServicerContext) -> Identity:
        """Returns whose call it is, by its connection too, and by the tenants of now.

        A certificate that names no tenant says nothing. A certificate and a credential have to
        agree. Raises :class:`CredentialRequired`.
        """
        if self._credentials.tenants is not self._known_by:
            # They changed while the call waited for a thread.
            self._look_up()
        local = is_local(context)
        certified = None
        if not local:
            # The stubs have bytes for what are lists of them.
            properties = cast("Mapping[str, Iterable[bytes]]", context.auth_context())
            names = certificate_names(properties)
            certified = self._credentials.identify_certificate(names)
        if certified is not None and not self._has_credential:
            return certified
        known = self._known
        if known is None or (known.local_only and not local):
            raise CredentialRequired
        if certified not in (None, known.identity):
            raise CredentialRequired(why="the token is not of the certificate's tenant")
        return known.identity
