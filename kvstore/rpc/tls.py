"""TLS for a TCP address: the server's certificate, and the clients' authorities."""

import os
import ssl
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import NamedTuple, NoReturn

import grpc
import structlog

from kvstore.operator_files import read_regular

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class UnusableTls(ValueError):
    """The certificate, its key or the clients' authorities cannot be used. The message says why."""


class TlsFiles(NamedTuple):
    """Files in PEM. With ``client_ca`` every client has to present a certificate."""

    cert: Path
    key: Path
    client_ca: Path | None = None


class Tls:
    """Credentials of a server that follow their files: renewed ones count without a restart.

    ``read_key`` returns the key's bytes, or raises ValueError if other users can reach the file.
    Raises :class:`UnusableTls`. Thread-safe.

    The server asks either all clients for certificates or none: gRPC's Python has no optional
    client certificates.
    """

    def __init__(self, files: TlsFiles, read_key: Callable[[Path], bytes]) -> None:
        self._files = files
        self._read_key = read_key
        self._mutex = Lock()
        self._seen = self._stamps()
        self._configuration = self._load()

    def credentials(self) -> grpc.ServerCredentials:
        """Returns the credentials with which gRPC binds an address."""
        return grpc.dynamic_ssl_server_credentials(
            self._configuration,
            self.renewed,  # type: ignore[arg-type]  # gRPC takes None for no change
            require_client_authentication=self._files.client_ca is not None,
        )

    def renewed(self) -> "grpc.ServerCertificateConfiguration | None":
        """Returns the files' content if it changed since last time, else None.

        gRPC asks at each handshake. Files that cannot be used change nothing; each change to such
        files is a warning in the log.
        """
        with self._mutex:
            stamps = self._stamps()
            if stamps == self._seen:
                return None
            self._seen = stamps
            try:
                self._configuration = self._load()
            except UnusableTls as error:
                log.warning("tls_not_renewed", why=str(error))
                return None
            log.info("tls_renewed", cert=str(self._files.cert))
            return self._configuration

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [None if path is None else _stamp(path) for path in self._files]

    def _load(self) -> "grpc.ServerCertificateConfiguration":
        cert, key, client_ca = self._files
        try:
            key_bytes = self._read_key(key)
            chain = _chain(cert, key)
            authorities = None if client_ca is None else _authorities(client_ca)
        except (OSError, ValueError) as error:
            raise UnusableTls(f"TLS: {error}") from error
        return grpc.ssl_server_certificate_configuration([(key_bytes, chain)], authorities)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def _chain(cert: Path, key: Path) -> bytes:
    """Returns a certificate after a check that the key is its own.

    gRPC would fail without a message. Raises ValueError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        content = read_regular(cert).content
        context.load_cert_chain(cert, key, password=_refuse_passphrase)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"tls_cert {cert} and tls_key {key}: {_why(error)}") from error
    return content


def _authorities(path: Path) -> bytes:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        content = read_regular(path).content
        context.load_verify_locations(path)
    except (OSError, ssl.SSLError) as error:
        raise ValueError(f"tls_client_ca {path}: {_why(error)}") from error
    return content


def _why(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return error.reason or "no PEM that could be read"
    return os.strerror(error.errno) if error.errno else str(error)


def _refuse_passphrase() -> NoReturn:
    raise ValueError("the key has a passphrase, which nobody could type")
