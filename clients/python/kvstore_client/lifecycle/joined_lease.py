"""A lease that another process owns, and what that process hands over so that it can be joined."""

from typing import NamedTuple, Self

from kvstore.v1 import lease_pb2
from kvstore_client.calls.channel import StoreCalls
from kvstore_client.calls.lease_calls import LeaseCalls

LEASE_ID_BYTES = 16
EPOCH_BYTES = 8
# What begins it, so that anything else is told at once.
MARK = b"kvlease1"
LEAST_SECRET_BYTES = 16


class SharedLease(NamedTuple):
    """A lease by id and secret, and the epoch that granted it. Whoever has it may use the lease."""

    store_epoch: int
    lease_id: bytes
    secret: bytes

    def pack(self) -> bytes:
        """Returns it as bytes for another process of the same host and user."""
        epoch = self.store_epoch.to_bytes(EPOCH_BYTES, "little")
        return MARK + epoch + self.lease_id + self.secret

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Returns what :meth:`pack` was called of; raises ``ValueError`` for other bytes."""
        rest = packed.removeprefix(MARK)
        fixed = EPOCH_BYTES + LEASE_ID_BYTES
        if not packed.startswith(MARK) or len(rest) < fixed + LEAST_SECRET_BYTES:
            msg = "these are not the bytes of a shared lease"
            raise ValueError(msg)
        epoch = int.from_bytes(rest[:EPOCH_BYTES], "little")
        return cls(epoch, rest[EPOCH_BYTES:fixed], rest[fixed:])


class JoinedLease(LeaseCalls):
    """The calls under a lease whose owner alone renews, uses and revokes it."""

    def __init__(self, calls: StoreCalls, shared: SharedLease, look_every: float) -> None:
        """``look_every`` is how long, in seconds, the lease is taken to be there after a look."""
        super().__init__(calls, shared.lease_id, shared.store_epoch)
        self._look_every = look_every

    def renew(self, timeout: float) -> float:
        """Sees whether the lease is there still, and returns for how long that is believed.

        Raises ``StoreError``: ``LeaseNotFound`` once it ended.
        """
        request = lease_pb2.ListHoldsRequest(lease_id=self._lease_id, page_size=1)
        self._calls.call(self._calls.lease.ListHolds, request, timeout)
        return self._look_every

    def revoke(self, timeout: float) -> None:
        """Does nothing: it is its owner's."""
        del timeout
