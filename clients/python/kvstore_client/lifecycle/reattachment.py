"""One attempt to continue a suspended session with the server that has the store's memory now."""

from itertools import islice

from kvstore_client.calls.deadlines import Deadline
from kvstore_client.config import ClientConfig
from kvstore_client.errors import StaleEpoch, StoreUnavailable
from kvstore_client.lifecycle.handshake import Handshake
from kvstore_client.lifecycle.session import Session
from kvstore_client.runtime_dir import RuntimeDir


class Reattachment:
    """Says hello again, and binds this process to the session's lease with its mapped extents.

    Call :meth:`run` once, on the connector's thread. :meth:`abort`, from any thread, makes it
    fail soon.
    """

    def __init__(self, runtime_dir: RuntimeDir, config: ClientConfig, session: Session) -> None:
        lease = session.shared
        self._config = config
        self._session = session
        self._handshake = Handshake(runtime_dir, config, lease.lease_id, lease.secret)

    def run(self) -> None:
        """Resumes the session.

        Ends it if the store has other memory under the ids of its extents. Raises ``StoreError``
        after it cleaned up: one of ``SESSION_OVER`` if the session cannot be resumed any more.
        """
        resumed = False
        try:
            resumed = self._run()
        finally:
            if not resumed:
                self._handshake.close()

    def abort(self) -> None:
        """Makes :meth:`run` fail."""
        self._handshake.abort()

    def _run(self) -> bool:
        deadline = Deadline(self._config.connect_timeout)
        session, handshake = self._session, self._handshake
        welcome = handshake.hello(deadline)
        if welcome.store_epoch != session.store_epoch:
            raise StaleEpoch("STALE_EPOCH: the store restarted", reason="STALE_EPOCH")
        # Further ones are announced again, and the table compares them then.
        mapped = dict(islice((session.extents.identities() or {}).items(), session.max_batch_size))
        bound = handshake.bind(deadline, mapped)
        strange = mapped.keys() - set(bound.kept_extent_ids)
        if strange:
            session.end(StoreUnavailable(f"the store lost extents {sorted(strange)}"))
            return False
        # Also shows that the server answers over gRPC.
        capabilities = handshake.capabilities(deadline)
        if not session.joined:
            handshake.use_lanes(capabilities)
        session.extents.acknowledge(mapped)
        return session.resume(
            handshake.connection, handshake.calls, frozenset(capabilities.features)
        )
