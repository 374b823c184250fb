"""Tenants: the owners of the uids, tokens and certificates of the tenants file."""

import hmac
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import TypeVar

from kvstore.core import Identity

KEY_BYTES = 32

Key = TypeVar("Key", int, str, bytes)


@dataclass(frozen=True)
class Tenant:
    """One tenant and its credentials; ``token_digests`` are SHA-256 of its tokens."""

    name: str
    uids: frozenset[int] = frozenset()
    token_digests: frozenset[bytes] = frozenset()
    certificate_names: frozenset[str] = frozenset()
    admin: bool = False

    @property
    def identity(self) -> Identity:
        """The identity of a caller with one of its tokens or certificates."""
        return Identity(self.name, admin=self.admin)


class Tenants:
    """The tenants that an operator named, by uid, token and certificate name. Immutable.

    Raises ValueError if two tenants share a uid, a token or a certificate name. The error does not
    repeat a token's digest.
    """

    def __init__(self, tenants: Iterable[Tenant] = ()) -> None:
        self._key = secrets.token_bytes(KEY_BYTES)
        listed = list(tenants)
        self._by_uid = _by(((each, each.uids) for each in listed), "uid")
        self._by_name = _by(
            ((each, each.certificate_names) for each in listed), "certificate's name"
        )
        self._by_masked_digest = _by(
            ((each, map(self._masked, each.token_digests)) for each in listed), "token", shown=False
        )

    def of_uid(self, uid: int) -> Tenant | None:
        """Returns the tenant that a uid of this host belongs to."""
        return self._by_uid.get(uid)

    def of_token(self, token: str) -> Tenant | None:
        """Returns the tenant of a token.

        The time it takes reveals nothing about a valid token. The lookup uses the token's digest
        under a key that only this process knows, so no guess can share even the first bytes of an
        entry.

        The time is the same for one tenant and for a thousand. Comparing with every digest
        (``hmac.compare_digest``) would be no safer, and costs 0.14 ms a call for a thousand tokens.
        """
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        return self._by_masked_digest.get(self._masked(digest))

    def of_certificate(self, names: Iterable[str]) -> list[Tenant]:
        """Returns the tenants of a verified certificate's names, each once."""
        found = [
            self._by_name[each] for each in map(canonical_name, names) if each in self._by_name
        ]
        return list(dict.fromkeys(found))

    @property
    def has_tokens(self) -> bool:
        """True if any tenant has a token."""
        return bool(self._by_masked_digest)

    @property
    def has_certificate_names(self) -> bool:
        """True if any tenant is known by a certificate."""
        return bool(self._by_name)

    def _masked(self, digest: bytes) -> bytes:
        return hmac.digest(self._key, digest, "sha256")


def canonical_name(name: str) -> str:
    """Returns a certificate's name as it is compared: DNS names ignore case, URIs do not."""
    return name if ":" in name else name.lower()


def _by(
    claims: Iterable[tuple[Tenant, Iterable[Key]]], what: str, *, shown: bool = True
) -> Mapping[Key, Tenant]:
    """Returns the tenant of each claim; raises ValueError if two tenants claim the same."""
    found: dict[Key, Tenant] = {}
    for tenant, keys in claims:
        for key in keys:
            if key in found:
                named = f"the {what} {key!r}" if shown else f"a {what}"
                raise ValueError(f"{named} is of two tenants, {found[key].name} and {tenant.name}")
            found[key] = tenant
    return found
