"""Credentials: who a caller is, by the uid that the kernel named."""

import os
import secrets
from hashlib import sha256
from threading import Lock

from kvstore.core.caller import Identity
from kvstore.errors import CredentialRequired

ROOT_UID = 0


class Credentials:
    """One random credential for each uid, good until the store ends. Thread-safe.

    A uid is the tenant ``uid-N``; the store's own uid and root are admins. The
    table is bounded by the uids that reach the attach socket.
    """

    def __init__(self, admin_uids: frozenset[int] | None = None) -> None:
        """``admin_uids`` are the admins; None means the process's own uid and root."""
        self._admin_uids = {os.geteuid(), ROOT_UID} if admin_uids is None else admin_uids
        self._mutex = Lock()
        self._by_uid: dict[int, str] = {}
        self._by_digest: dict[bytes, Identity] = {}

    def identity_of(self, uid: int) -> Identity:
        """Return the identity of a uid."""
        return Identity(f"uid-{uid}", admin=uid in self._admin_uids)

    def issue(self, uid: int) -> str:
        """Return the uid's credential, made at the first call."""
        with self._mutex:
            credential = self._by_uid.get(uid)
            if credential is None:
                credential = secrets.token_urlsafe(32)
                self._by_uid[uid] = credential
                self._by_digest[_digest(credential)] = self.identity_of(uid)
            return credential

    def identify(self, credential: str) -> Identity:
        """Return whose credential it is; raises :class:`CredentialRequired` for an unknown one.

        Looked up by digest, so that the time it takes says nothing about how much
        of a guess was right.
        """
        with self._mutex:
            identity = self._by_digest.get(_digest(credential))
        if identity is None:
            raise CredentialRequired
        return identity


def _digest(credential: str) -> bytes:
    return sha256(credential.encode(errors="surrogatepass")).digest()
