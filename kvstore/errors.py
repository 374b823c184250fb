"""Every error that the store raises at a caller, one class a reason.

::

    KVStoreError
    ├── InvalidField              a field is missing, malformed or out of range
    ├── LimitExceeded             a size is over a published limit
    ├── CredentialRequired        no credential, or an unknown one
    ├── PermissionDenied          the identity does not suffice
    ├── StaleEpoch                the request speaks of another store epoch
    ├── LeaseNotFound             the lease ended, never was, or has another secret
    ├── LeaseExpired              past its TTL: it may only release
    ├── NotAttached               no living process under the lease
    ├── NamespaceNotFound         no such namespace of this tenant
    ├── LayoutMismatch            the namespace exists with another page layout
    ├── PinNotFound               the lease has no such pin
    ├── ReservationNotFound       the lease has no such reservation
    ├── IdReused                  the id is in use for something else
    ├── Tombstoned                the id was released before this call came
    ├── PoolExhausted             slots cannot be had now
    ├── InsertExceedsReservation  pages beyond the reservation
    ├── ParentNotCovered          the path above is not covered
    ├── ParentDetached            the path above was removed
    ├── PrefixNotCached           all was required and less is cached
    ├── QuotaExceeded             a bounded table of the caller is full
    ├── PageCorrupt               a page's bytes are not what was written
    ├── StoreDraining             starting or draining
    ├── FeatureUnsupported        not built into this server
    └── PeerRefused               the attach socket refuses this process

The class name in upper snake case is the ``ErrorReason`` of the wire. Values
that the message names are in ``metadata`` too. Standard library only: core
raises these.
"""

import re
from typing import ClassVar


class KVStoreError(Exception):
    """A call failed and changed nothing.

    ``metadata`` holds, as strings, the values that the message names.
    ``retry_after_s`` is set where the same call may succeed later.
    """

    message: ClassVar[str] = "the call failed"
    retry_after_s: float | None = None

    def __init__(self, **metadata: object) -> None:
        self.metadata = {key: str(value) for key, value in metadata.items()}
        details = ", ".join(f"{key}={value}" for key, value in self.metadata.items())
        super().__init__(f"{self.message} ({details})" if details else self.message)

    @classmethod
    def reason(cls) -> str:
        """Returns the name of the wire's ``ErrorReason``, without its prefix."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).upper()


class InvalidField(KVStoreError):
    """A field is missing, malformed or out of range."""

    message = "a field is not valid"


class LimitExceeded(KVStoreError):
    """A size is over a limit of GetCapabilities."""

    message = "a limit is exceeded"


class CredentialRequired(KVStoreError):
    """Nobody whom the store knows makes the call: no credential, token or certificate of a tenant.

    ``why`` is there where two that came with the call do not fit together.
    """

    message = "a credential that the store knows is required"


class PermissionDenied(KVStoreError):
    """The caller's identity does not suffice."""

    message = "the caller may not do this"


class StaleEpoch(KVStoreError):
    """The request speaks of another epoch: the store restarted since."""

    message = "the store restarted since"


class LeaseNotFound(KVStoreError):
    """The lease ended, never was, or has another secret or tenant."""

    message = "no such lease"


class LeaseExpired(KVStoreError):
    """The lease is past its TTL and may only release, abort and be revoked."""

    message = "the lease is past its time to live"


class NotAttached(KVStoreError):
    """No living process is attached under the lease."""

    message = "the lease has no attached process"


class NamespaceNotFound(KVStoreError):
    """No such namespace of the caller's tenant."""

    message = "no such namespace"


class LayoutMismatch(KVStoreError):
    """The namespace exists with another page layout."""

    message = "the namespace has another page layout"


class PinNotFound(KVStoreError):
    """The lease has no such pin."""

    message = "no such pin"


class ReservationNotFound(KVStoreError):
    """The lease has no such reservation."""

    message = "no such reservation"


class IdReused(KVStoreError):
    """The id is in use, with other arguments: a bug of the caller."""

    message = "the id is in use with other arguments"


class Tombstoned(KVStoreError):
    """The id was released, aborted or revoked before this call came."""

    message = "the id was released before this call came"


class PoolExhausted(KVStoreError):
    """Not enough slots can be had now; nothing was evicted for the attempt."""

    message = "not enough slots can be had now"
    retry_after_s = 0.1


class InsertExceedsReservation(KVStoreError):
    """The insert asks for pages beyond its reservation."""

    message = "the insert is longer than its reservation"


class ParentNotCovered(KVStoreError):
    """The inserted pages do not follow a path that a pin or reservation covers."""

    message = "the path above the inserted pages is not covered"


class ParentDetached(KVStoreError):
    """The covering path was removed: what was computed on it is not published."""

    message = "the path above the inserted pages was removed"


class PrefixNotCached(KVStoreError):
    """All of a prefix was to be pinned, and less is cached."""

    message = "less of the prefix is cached than was required"


class QuotaExceeded(KVStoreError):
    """A quota or a bounded table of the caller is full."""

    message = "a quota is exceeded"


class PageCorrupt(KVStoreError):
    """A page of the answer, which another call answered already, is not what was written."""

    message = "a page is not what was written"


class StoreDraining(KVStoreError):
    """The store is starting or draining."""

    message = "the store takes no new work now"
    retry_after_s = 1.0


class FeatureUnsupported(KVStoreError):
    """This server has not the feature."""

    message = "the feature is not in this server"


class PeerRefused(KVStoreError):
    """The attach socket refuses this process."""

    message = "the attach socket refuses this process"
