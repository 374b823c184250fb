"""One attempt to attach: from nothing to a session."""

import contextlib
import os
import time
from collections.abc import Iterator
from threading import Condition

from google.protobuf import duration_pb2

from kvstore.v1 import attach_pb2, lease_pb2, store_pb2
from kvstore_client.calls.attach_connection import AttachConnection
from kvstore_client.calls.deadlines import Deadline
from kvstore_client.calls.grpc_channel import StoreCalls
from kvstore_client.calls.lane import Lane
from kvstore_client.calls.lane_pool import FEATURE, LanePool
from kvstore_client.calls.lease_calls import LeaseCalls
from kvstore_client.config import ClientConfig
from kvstore_client.errors import StaleEpoch, StoreError, StoreUnavailable
from kvstore_client.fault_points import fault_point
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
        self._runtime_dir = runtime_dir
        self._config = config
        self._connection = AttachConnection(runtime_dir.attach_socket)
        self._calls: StoreCalls | None = None
        self._aborted = False
        self._joined = joined
        self._lease_id = joined.lease_id if joined else os.urandom(LEASE_ID_BYTES)
        self._secret = joined.secret if joined else os.urandom(SECRET_BYTES)

    def run(self, monitor: Condition, numbers: Iterator[int]) -> Session:
        """Returns the session. Raises ``StoreError`` after it cleaned up."""
        try:
            return Session(self._bind(), self._config, monitor, numbers)
        except StoreError:
            self._connection.close()
            if self._calls is not None:
                self._calls.close()
            raise

    def abort(self) -> None:
        """Makes :meth:`run` fail."""
        self._aborted = True
        self._connection.abort()
        if self._calls is not None:
            self._calls.cancel()

    def _bind(self) -> Attachment:
        deadline = Deadline(self._config.connect_timeout)
        fault_point("hello.before")
        welcome = self._connection.hello(
            self._config.display_name, cuda_mps=self._config.cuda_mps, deadline=deadline
        )
        fault_point("hello.after")
        calls = StoreCalls(self._runtime_dir.grpc_target, welcome.credential, self._secret)
        self._calls = calls
        if self._aborted:
            raise StoreUnavailable("given up by this client")
        shared = SharedLease(welcome.store_epoch, self._lease_id, self._secret)
        if self._joined is not None:
            return self._join(self._joined, welcome, shared, deadline)
        lease = LeaseCalls(calls, self._lease_id, welcome.store_epoch)
        try:
            fault_point("grant.before")
            term = self._grant(calls, welcome, deadline)
            fault_point("grant.after")
            fault_point("bind.before")
            self._connection.bind(self._lease_id, self._secret, deadline)
            fault_point("bind.after")
            capabilities = self._capabilities(calls, deadline)
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
        if self._config.hot_lane and FEATURE in capabilities.features:
            calls.use_lanes(LanePool(self._open_lane))
        return Attachment(
            self._connection,
            calls,
            lease,
            term,
            welcome,
            capabilities.limits,
            shared,
            features=frozenset(capabilities.features),
        )

    def _open_lane(self, timeout: float) -> Lane:
        lane = Lane(self._runtime_dir.attach_socket)
        try:
            lane.open(self._config.display_name, self._lease_id, self._secret, Deadline(timeout))
        except BaseException:
            lane.close()
            raise
        return lane

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
        assert self._calls is not None
        lease = JoinedLease(self._calls, joined, self._config.ttl)
        term = LeaseTerm(time.monotonic(), self._config.ttl)
        self._connection.bind(joined.lease_id, joined.secret, deadline)
        limits = self._capabilities(self._calls, deadline).limits
        return Attachment(
            self._connection, self._calls, lease, term, welcome, limits, shared, joined=True
        )

    def _capabilities(
        self, calls: StoreCalls, deadline: Deadline
    ) -> store_pb2.GetCapabilitiesResponse:
        answer: store_pb2.GetCapabilitiesResponse = calls.call_cancellably(
            calls.store.GetCapabilities, store_pb2.GetCapabilitiesRequest(), deadline.remaining()
        )
        return answer

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
