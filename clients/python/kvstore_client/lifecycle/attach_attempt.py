"""One attempt to attach: from nothing to a session."""

import contextlib
import os
import time
from collections.abc import Iterator
from threading import Condition

from google.protobuf import duration_pb2

from kvstore.v1 import attach_pb2, lease_pb2
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lane_pool import FEATURE
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.config import ClientConfig
from kvstore_client.errors import StaleEpoch, StoreError, StoreUnavailable
from kvstore_client.fault_points import fault_point
from kvstore_client.lifecycle.handshake import Handshake
from kvstore_client.lifecycle.joined_lease import LEASE_ID_BYTES, JoinedLease, SharedLease
from kvstore_client.lifecycle.lease_keeper import LeaseTerm
from kvstore_client.lifecycle.session import Attachment, Session
from kvstore_client.runtime_dir import RuntimeDir

SECRET_BYTES = 32


class Attempt:
    """Says hello, grants or joins a lease, and binds this process to it.

    Call :meth:`run` once, on one thread. :meth:`abort`, from any thread, makes it fail soon.
    """

    def __init__(
        self, runtime_dir: RuntimeDir, config: ClientConfig, joined: SharedLease | None = None
    ) -> None:
        self._config = config
        self._joined = joined
        self._lease_id = joined.lease_id if joined else os.urandom(LEASE_ID_BYTES)
        self._secret = joined.secret if joined else os.urandom(SECRET_BYTES)
        self._handshake = Handshake(runtime_dir, config, self._lease_id, self._secret)

    def run(self, monitor: Condition, numbers: Iterator[int]) -> Session:
        """Returns the session. Raises ``StoreError`` after it cleaned up."""
        try:
            return Session(self._bind(), self._config, monitor, numbers)
        except StoreError:
            self._handshake.close()
            raise

    def abort(self) -> None:
        """Makes :meth:`run` fail."""
        self._handshake.abort()

    def _bind(self) -> Attachment:
        deadline = Deadline(self._config.connect_timeout)
        fault_point("hello.before")
        welcome = self._handshake.hello(deadline)
        fault_point("hello.after")
        calls = self._handshake.calls
        shared = SharedLease(welcome.store_epoch, self._lease_id, self._secret)
        if self._joined is not None:
            return self._join(self._joined, welcome, shared, deadline)
        lease = LeaseCalls(calls, self._lease_id, welcome.store_epoch)
        try:
            fault_point("grant.before")
            term = self._grant(calls, welcome, deadline)
            fault_point("grant.after")
            fault_point("bind.before")
            self._handshake.bind(deadline)
            fault_point("bind.after")
            capabilities = self._handshake.capabilities(deadline)
        except StoreError:
            # The lease may be granted, and no one will use it. If this fails too, it expires.
            with contextlib.suppress(StoreError):
                calls.call_cancellably(
                    calls.lease.RevokeLease,
                    lease_pb2.RevokeLeaseRequest(
                        lease_id=self._lease_id, store_epoch=welcome.store_epoch
                    ),
                    self._config.call_timeout,
                )
            raise
        self._handshake.use_lanes(capabilities)
        return Attachment(
            self._handshake.connection,
            calls,
            lease,
            term,
            welcome,
            capabilities.limits,
            shared,
            features=frozenset(capabilities.features),
        )

    def _join(
        self,
        joined: SharedLease,
        welcome: attach_pb2.Welcome,
        shared: SharedLease,
        deadline: Deadline,
    ) -> Attachment:
        """Binds this process to its owner's lease, which only the owner revokes."""
        if welcome.store_epoch != joined.store_epoch:
            raise StaleEpoch("STALE_EPOCH: the store restarted", reason="STALE_EPOCH")
        calls = self._handshake.calls
        lease = JoinedLease(calls, joined, self._config.ttl)
        term = LeaseTerm(time.monotonic(), self._config.ttl)
        self._handshake.bind(deadline)
        limits = self._handshake.capabilities(deadline).limits
        return Attachment(
            self._handshake.connection, calls, lease, term, welcome, limits, shared, joined=True
        )

    def _grant(
        self, calls: StoreCalls, welcome: attach_pb2.Welcome, deadline: Deadline
    ) -> LeaseTerm:
        wanted = duration_pb2.Duration()
        wanted.FromMilliseconds(round(self._config.ttl * 1_000))
        sent_at = time.monotonic()
        granted: lease_pb2.GrantLeaseResponse = calls.call_cancellably(
            calls.lease.GrantLease,
            lease_pb2.GrantLeaseRequest(
                lease_id=self._lease_id,
                ttl=wanted,
                display_name=self._config.display_name,
                features=[FEATURE] if self._config.hot_lane else [],
            ),
            deadline.remaining(),
        )
        if granted.store_epoch != welcome.store_epoch:
            raise StoreUnavailable("the store restarted while this process attached")
        return LeaseTerm(sent_at, granted.ttl.ToTimedelta().total_seconds())
