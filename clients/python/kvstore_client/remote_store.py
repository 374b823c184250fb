"""A store on another host: its TCP address and the caller's credentials."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from kvstore_client.calls.grpc_channel import CHANNEL_OPTIONS, StoreCalls


@dataclass(frozen=True, kw_only=True)
class RemoteStore:
    """The TCP address and credentials of a store, for administration and peeks.

    Its pages can be used only on its own host. The connection uses TLS unless ``insecure``. An
    authority in ``tls_ca`` must have signed the store's certificate, or by default one that
    gRPC knows. The caller identifies itself by ``token``, by a certificate (``tls_cert`` with
    its ``tls_key``), or by both, which must agree. All files are PEM.

    Raises ``ValueError`` for settings that contradict each other.
    """

    address: str
    token: str = field(default="", repr=False)
    tls_ca: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_key: str | os.PathLike[str] | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"the address has to be HOST:PORT, and is {self.address!r}")
        if self.insecure and (self.tls_ca or self.tls_cert or self.tls_key):
            raise ValueError("without TLS there are no certificates: leave them out, or insecure")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ValueError("a certificate and its key go together: tls_cert, tls_key")
        if not self.token.isascii() or not self.token.isprintable():
            raise ValueError("the token has characters that no token has")

    def channel(self) -> grpc.Channel:
        """Returns a channel without the token, which suffices for health checks.

        Raises ``ValueError`` if a file cannot be read.
        """
        trust = self._trust()
        if trust is None:
            return grpc.insecure_channel(self.address, options=CHANNEL_OPTIONS)
        return grpc.secure_channel(self.address, trust, options=CHANNEL_OPTIONS)

    def calls(self) -> StoreCalls:
        """Returns a channel with the token, which connects at its first call.

        Raises ``ValueError`` without a credential, or if a file cannot be read.
        """
        if not self.token and self.tls_cert is None:
            raise ValueError(
                f"{self.address} wants to know who calls: give a token, or tls_cert and tls_key"
            )
        return StoreCalls(self.address, self.token, trust=self._trust())

    def _trust(self) -> grpc.ChannelCredentials | None:
        if self.insecure:
            return None
        ca, key, cert = (
            None if each is None else _read(Path(each))
            for each in (self.tls_ca, self.tls_key, self.tls_cert)
        )
        return grpc.ssl_channel_credentials(ca, key, cert)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
