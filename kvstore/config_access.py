"""The server's settings of who may call it: sockets' modes, TCP, TLS, tenants."""

from typing import Annotated, Self

from pydantic import model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from kvstore.config_about import CONTENT_AT_ONCE, CONTENT_AT_SIGHUP, Shown
from kvstore.config_types import FilePath, GroupName, ListenAddress


class AccessSettings(BaseSettings):
    """Where a server listens, and whom it knows."""

    model_config = SettingsConfigDict(use_attribute_docstrings=True)

    tenants_file: Annotated[
        FilePath | None,
        CONTENT_AT_SIGHUP,
        Shown(
            metrics="kvstore_refused_requests_total",
            stats="namespaces refused_request_count",
            log="tenants_not_read",
            errors="CREDENTIAL_REQUIRED",
        ),
    ] = None
    """A TOML file of tenants: their uids, tokens, certificates and quotas.

    Written by its owner alone, who is the server's user or root, and not readable by
    others; read again at SIGHUP. docs/tenants.md has an example.
    Wrong when callers get `CREDENTIAL_REQUIRED`, or two workers that should share
    pages are in two namespaces of `kvstore-ctl namespaces`.
    Absent: each uid of this host is the tenant `uid-N`, and nobody calls over TCP.
    Start with: none.
    """

    socket_group: Annotated[
        GroupName | None,
        Shown(metrics="kvstore_attached_processes", stats="leases", log="process_attached"),
    ] = None
    """A group, by name or number, whose members may connect to the unix sockets.

    The folder gets mode 0750 and the sockets 0660, of this group, in which the
    server's user has to be. Each uid stays a tenant of its own unless `tenants_file`
    says otherwise. Wrong when workers of other users stay disconnected.
    Absent: the server's user alone, 0700 and 0600. Start with: none.
    """

    listen: Annotated[ListenAddress | None, Shown(log="server_started")] = None
    """HOST:PORT of a TCP address for gRPC, beside the unix socket.

    Remote clients look, peek and administer; pages are used on this host alone. Needs
    `tls_cert` and `tls_key`, or `insecure_tcp`, and callers in `tenants_file`. Port 0
    is any that is free; the log's `server_started` says which.
    Absent: unix sockets alone. Start with: none.
    """

    tls_cert: Annotated[FilePath | None, CONTENT_AT_ONCE, Shown(log="tls_not_renewed")] = None
    """The server's certificate for `listen`, with its chain, in PEM.

    It names the host that clients connect to. Replaced on disk, it is used from the
    next connection on, as `tls_key` and `tls_client_ca` are. Wrong when clients say
    that no certificate could be verified. Absent: no TLS. Start with: none.
    """

    tls_key: Annotated[FilePath | None, CONTENT_AT_ONCE, Shown(log="tls_not_renewed")] = None
    """The private key of `tls_cert`, in PEM, without a passphrase.

    It is the server's user's or root's, and others can neither read nor write it.
    Absent: no TLS. Start with: none.
    """

    tls_client_ca: Annotated[
        FilePath | None,
        CONTENT_AT_ONCE,
        Shown(log="tls_not_renewed", errors="CREDENTIAL_REQUIRED"),
    ] = None
    """Certificates, in PEM, of those who sign the certificates of clients.

    With it every client over TCP has to show one, which names its tenant. A token may
    come with it, and has to name the same tenant. Absent: tokens alone. Start with: none.
    """

    insecure_tcp: Annotated[bool, Shown(log="insecure_tcp")] = False
    """Let `listen` go without TLS: whoever sees the network reads tokens and token ids.

    Callers need a token all the same. For loopback, or inside a tunnel.
    Start with: no.
    """

    @model_validator(mode="after")
    def _require_guarded_tcp(self) -> Self:
        tls = self.tls_cert or self.tls_key or self.tls_client_ca
        if self.listen is None:
            if tls or self.insecure_tcp:
                raise ValueError(
                    "tls_cert, tls_key, tls_client_ca and insecure_tcp say how to listen: "
                    "set listen, such as --listen 127.0.0.1:7400, or leave them out"
                )
            return self
        if tls and self.insecure_tcp:
            raise ValueError("insecure_tcp is for a listen without TLS: leave it or tls_... out")
        if not self.insecure_tcp and not (self.tls_cert and self.tls_key):
            raise ValueError(
                f"listen {self.listen} needs TLS: give --tls-cert and --tls-key, and "
                "--tls-client-ca for certificates of clients; or say --insecure-tcp, and "
                "whoever sees the network reads all that passes"
            )
        if self.tenants_file is None:
            raise ValueError(
                f"listen {self.listen} needs --tenants-file: over TCP a caller is known by a "
                "token or a certificate that stands there, and by nothing else"
            )
        return self
