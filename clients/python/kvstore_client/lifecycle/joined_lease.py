"""A lease that another process owns, and the bytes by which this process joins it."""

from typing import NamedTuple, Self

from kvstore.v1 import lease_pb2
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lease_calls import LeaseCalls

LEASE_ID_BYTES = 16
EPOCH_BYTES = 8
# The first bytes, by which other bytes are recognised as wrong.
MARK = b"kvlease1"
LEAST_SECRET_BYTES = 16


class SharedLease(NamedTuple):
    """A lease's id and secret, and the epoch that granted it. They permit to use the lease."""

    store_epoch: int
    lease_id: bytes
    secret: bytes

    def pack(self) -> bytes:
        """Returns it as bytes for another process of the same host and user."""
        epoch = self.store_epoch.to_bytes(EPOCH_BYTES, "little")
        return MARK + epoch + self.lease_id + self.secret

    @classmethod
    def unpack(cls, packed: bytes) -> Self:
        """Returns the lease that :meth:`pack` packed; raises ``ValueError`` for other bytes."""
        rest = packed.removeprefix(MARK)
        fixed = EPOCH_BYTES + LEASE_ID_BYTES
        if not packed.startswith(MARK) or len(rest) < fixed + LEAST_SECRET_BYTES:
            raise ValueError("these are not the bytes of a shared lease")
        epoch = int.from_bytes(rest[:EPOCH_BYTES], "little")
        return cls(epoch, rest[EPOCH_BYTES:fixed], rest[fixed:])


class JoinedLease(LeaseCalls):
    """The calls under a lease whose owner alone renews, uses and revokes it."""

    def __init__(self, calls: StoreCalls, shared: SharedLease, look_every: float) -> None:
        """``look_every`` is the time to live, in seconds, that each successful check gives."""
        super().__init__(calls, shared.lease_id, shared.store_epoch)
        self._look_every = look_every

    def renew(self, timeout: float) -> float:
        """Checks that the lease exists, and returns ``look_every`` as its time to live.

        Raises ``StoreError``, such as ``LeaseNotFound`` once the lease ended.
        """
        request = lease_pb2.ListHoldsRequest(lease_id=self._lease_id, page_size=1)
        self._calls.call(self._calls.lease.ListHolds, request, timeout)
        return self._look_every

    def revoke(self, timeout: float) -> None:
        """Does nothing: only the owner revokes the lease."""
        del timeout
