"""Credentials: who a caller is, by a uid that the kernel named, a token or a certificate."""

import os
import secrets
from collections.abc import Sequence
from hashlib import sha256
from threading import Lock
from typing import NamedTuple

from kvstore.core import Identity
from kvstore.errors import CredentialRequired
from kvstore.service.tenancy.tenant_lookup import Tenants

ROOT_UID = 0


class Known(NamedTuple):
    """The tenant of a credential. A ``local_only`` one counts for calls over a unix socket only."""

    identity: Identity
    local_only: bool


class Credentials:
    """One random credential for each uid, good until the store ends; and who is whose tenant.

    Thread-safe. A uid belongs to the tenant that names it, else it is the tenant
    ``uid-N``; the store's own uid and root are admins. The table is bounded by the
    uids that reach the attach socket. ``tenants`` may be replaced at any time: callers that keep
    an identity ask again once it is another one.
    """

    def __init__(
        self, admin_uids: frozenset[int] | None = None, tenants: Tenants | None = None
    ) -> None:
        """``admin_uids`` are the admins; None means the process's own uid and root."""
        self._admin_uids = {os.geteuid(), ROOT_UID} if admin_uids is None else admin_uids
        self.tenants = Tenants() if tenants is None else tenants
        self._mutex = Lock()
        self._by_uid: dict[int, str] = {}
        self._uid_by_digest: dict[bytes, int] = {}

    def identity_of(self, uid: int) -> Identity:
        """Returns the identity of a uid."""
        tenant = self.tenants.of_uid(uid)
        admin = uid in self._admin_uids
        if tenant is None:
            return Identity(f"uid-{uid}", admin=admin)
        return Identity(tenant.name, admin=admin or tenant.admin)

    def issue(self, uid: int) -> str:
        """Returns the uid's credential, made at the first call."""
        with self._mutex:
            credential = self._by_uid.get(uid)
            if credential is None:
                credential = secrets.token_urlsafe(32)
                self._by_uid[uid] = credential
                self._uid_by_digest[_digest(credential)] = uid
            return credential

    def identify(self, credential: str) -> Known:
        """Returns whose credential or token it is; raises :class:`CredentialRequired`.

        A uid's credential counts only over a unix socket: the kernel vouched for a process of
        this host. A token counts anywhere.

        The lookup is by digest, so its time reveals nothing about a valid credential: this table
        has random credentials only, and nobody can work towards their digests.
        :meth:`Tenants.of_token` says why the same holds for tokens.
        """
        with self._mutex:
            uid = self._uid_by_digest.get(_digest(credential))
        if uid is not None:
            return Known(self.identity_of(uid), local_only=True)
        tenant = self.tenants.of_token(credential)
        if tenant is None:
            raise CredentialRequired
        return Known(tenant.identity, local_only=False)

    def identify_certificate(self, names: Sequence[str]) -> Identity | None:
        """Returns whose certificate it is, by its names; None for nobody's.

        The certificate has to be verified. Raises :class:`CredentialRequired` where its
        names are of several tenants.
        """
        found = self.tenants.of_certificate(names)
        if len(found) > 1:
            raise CredentialRequired(why="the certificate names several tenants")
        return found[0].identity if found else None


def _digest(credential: str) -> bytes:
    return sha256(credential.encode(errors="surrogatepass")).digest()
