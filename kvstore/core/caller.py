"""Who calls: a tenant, and for calls that change state a lease."""

from typing import NamedTuple


class Identity(NamedTuple):
    """Whose request it is, known from a credential and never from the request."""

    tenant: str
    admin: bool = False

    def sees(self, tenant: str) -> bool:
        """Return whether things of ``tenant`` exist for this identity."""
        return self.admin or self.tenant == tenant


class Caller(NamedTuple):
    """A request under a lease: its id, its secret, and the epoch that granted it.

    ``epoch`` is None where none is known yet: granting a lease, binding a process.
    """

    identity: Identity
    lease_id: bytes
    secret: bytes
    epoch: int | None
