"""Credentials: who a caller is, by a uid that the kernel named, a token or a certificate."""

import os
import re
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Sequence
from hmac import compare_digest, digest
from typing import NamedTuple

from kvstore.core import Identity
from kvstore.errors import CredentialRequired
from kvstore.service.tenancy.tenant_lookup import Tenants

ROOT_UID = 0
KEY_BYTES = 32
# The form of a uid's credential: the uid, and a MAC of it.
OF_UID = re.compile(r"uid-(\d{1,10})\.[\w-]{43}", re.ASCII)


class Known(NamedTuple):
    """The tenant of a credential. A ``local_only`` one counts for calls over a unix socket only."""

    identity: Identity
    local_only: bool


class Credentials:
    """One credential for each uid, made with the store's key; and who is whose tenant.

    Thread-safe. A uid belongs to the tenant that names it, else it is the tenant
    ``uid-N``; the store's own uid and root are admins. A credential is good for as long as the
    store has its key, so for the life of its memory. ``tenants`` may be replaced at any time:
    callers that keep an identity ask again once it is another one.
    """

    def __init__(
        self,
        admin_uids: frozenset[int] | None = None,
        tenants: Tenants | None = None,
        *,
        key: bytes | None = None,
    ) -> None:
        """``admin_uids`` are the admins; None means the process's own uid and root.

        ``key`` is secret; a random one by default.
        """
        self._admin_uids = {os.geteuid(), ROOT_UID} if admin_uids is None else admin_uids
        self.tenants = Tenants() if tenants is None else tenants
        self._key = secrets.token_bytes(KEY_BYTES) if key is None else key

    def identity_of(self, uid: int) -> Identity:
        """Returns the identity of a uid."""
        tenant = self.tenants.of_uid(uid)
        admin = uid in self._admin_uids
        if tenant is None:
            return Identity(f"uid-{uid}", admin=admin)
        return Identity(tenant.name, admin=admin or tenant.admin)

    def issue(self, uid: int) -> str:
        """Returns the uid's credential, always the same one."""
        mac = urlsafe_b64encode(digest(self._key, b"uid %d" % uid, "sha256"))
        return f"uid-{uid}.{mac.decode().rstrip('=')}"

    def identify(self, credential: str) -> Known:
        """Returns whose credential or token it is; raises :class:`CredentialRequired`.

        A uid's credential counts only over a unix socket: the kernel vouched for a process of
        this host. A token counts anywhere.

        A uid's credential is compared in constant time. :meth:`Tenants.of_token` says why the
        lookup of a token reveals nothing.
        """
        of_uid = OF_UID.fullmatch(credential)
        if of_uid is not None:
            uid = int(of_uid[1])
            if compare_digest(self.issue(uid), credential):
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
