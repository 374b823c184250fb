"""Tenants: whom a uid, a token or a certificate of the tenants file stands for."""

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
    """One tenant, and by what it is known; ``token_digests`` are SHA-256 of its tokens."""

    name: str
    uids: frozenset[int] = frozenset()
    token_digests: frozenset[bytes] = frozenset()
    certificate_names: frozenset[str] = frozenset()
    admin: bool = False

    @property
    def identity(self) -> Identity:
        """The identity of whoever shows one of its tokens or certificates."""
        return Identity(self.name, admin=self.admin)


class Tenants:
    """The tenants that an operator named, by all that stands for them. Immutable.

    Raises ValueError where a uid, a token or a certificate's name is two tenants',
    without repeating a token's digest.
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
        """Returns whose token it is.

        The time it takes says nothing about a token that is right: what is looked up
        is the token's digest under a key that nobody outside this process has, so no
        guess can be made to share even its first bytes with an entry of the table, and
        it takes as long for one tenant as for a thousand. To compare with every digest
        in turn (``hmac.compare_digest``) would say no less, and take longer with each:
        0.14 ms of every call for a thousand tokens.
        """
        digest = sha256(token.encode(errors="surrogatepass")).digest()
        return self._by_masked_digest.get(self._masked(digest))

    def of_certificate(self, names: Iterable[str]) -> list[Tenant]:
        """Returns the tenants that the names of a verified certificate stand for, each once."""
        found = [
            self._by_name[each] for each in map(canonical_name, names) if each in self._by_name
        ]
        return list(dict.fromkeys(found))

    @property
    def has_tokens(self) -> bool:
        """Whether any tenant has a token."""
        return bool(self._by_masked_digest)

    @property
    def has_certificate_names(self) -> bool:
        """Whether any tenant is known by a certificate."""
        return bool(self._by_name)

    def _masked(self, digest: bytes) -> bytes:
        return hmac.digest(self._key, digest, "sha256")


def canonical_name(name: str) -> str:
    """Returns a certificate's name as it is compared: DNS names have no case, URIs do."""
    return name if ":" in name else name.lower()


def _by(
    claims: Iterable[tuple[Tenant, Iterable[Key]]], what: str, *, shown: bool = True
) -> Mapping[Key, Tenant]:
    """Returns who claims what; raises ValueError where two claim the same."""
    found: dict[Key, Tenant] = {}
    for tenant, keys in claims:
        for key in keys:
            if key in found:
                named = f"the {what} {key!r}" if shown else f"a {what}"
                raise ValueError(f"{named} is of two tenants, {found[key].name} and {tenant.name}")
            found[key] = tenant
    return found
