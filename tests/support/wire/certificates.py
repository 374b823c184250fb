"""Certificates for tests: an authority, and what it signs, for some hours."""

import datetime as dt
import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

HOURS = dt.timedelta(hours=6)


@dataclass(frozen=True)
class Certificate:
    """A certificate and its key, in files."""

    cert: Path
    key: Path

    @property
    def pems(self) -> tuple[bytes, bytes]:
        """The key and the certificate, in PEM, as gRPC takes them."""
        return self.key.read_bytes(), self.cert.read_bytes()


class Authority:
    """Signs certificates, and has one of its own, in ``cert``; all in files of ``folder``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = generate_private_key(SECP256R1())
        self._name = _named(name)
        own = self._write(name, self._name, self._key, (), is_authority=True)
        self.cert = own.cert

    def issue(
        self, name: str, *, uris: Iterable[str] = (), hosts: Iterable[str] = ()
    ) -> Certificate:
        """Returns a certificate with a common name, URIs, and hosts by name or address."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(each) for each in uris]
        names += [_host(each) for each in hosts]
        return self._write(name, _named(name), generate_private_key(SECP256R1()), names)

    def _write(
        self,
        file_name: str,
        subject: x509.Name,
        key: EllipticCurvePrivateKey,
        names: Iterable[x509.GeneralName],
        *,
        is_authority: bool = False,
    ) -> Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder(self._name, subject, key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - HOURS)
            .not_valid_after(now + HOURS)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if listed := list(names):
            builder = builder.add_extension(x509.SubjectAlternativeName(listed), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        made = Certificate(self._folder / f"{file_name}.crt", self._folder / f"{file_name}.key")
        made.cert.write_bytes(signed.public_bytes(Encoding.PEM))
        made.key.touch(mode=0o600)
        made.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return made


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _host(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
