"""One node of a cluster: its connections, and whether calls wait for it."""

from threading import Lock
from time import monotonic
from typing import Final

from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.errors import DeadlinePassed, EngineUnreachable, RemoteError
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.commands import ping
from kvstore.remote.valkey.resp import RespConnection

# A node that missed so many deadlines in a row costs no further call its deadline.
LATE_CALLS: Final = 3


class ClusterNode:
    """A node with a pool of connections. Thread-safe.

    A node that hangs would cost each call its whole deadline. After ``LATE_CALLS`` of them it is
    away: calls fail at once until :meth:`probe` succeeds. No request is a probe.
    """

    def __init__(self, address: EngineAddress, pool: ConnectionPool[RespConnection]) -> None:
        self.address = address
        self._pool = pool
        self._lock = Lock()
        self._late = 0

    @property
    def is_away(self) -> bool:
        """Calls fail at once."""
        with self._lock:
            return self._late >= LATE_CALLS

    @property
    def needs_probe(self) -> bool:
        """The node is away, or its last connection could not be made."""
        return self.is_away or self._pool.has_failed

    def take(self, deadline: float) -> RespConnection:
        """Returns a connection; the caller gives it back. Raises a ``RemoteError``."""
        if self.is_away:
            raise EngineUnreachable(f"the node {self.address} missed {LATE_CALLS} deadlines")
        return self._pool.take(deadline)

    def give_back(self, connection: RespConnection) -> None:
        """Takes a connection back."""
        self._pool.give(connection)

    def note(self, error: RemoteError | None) -> None:
        """Counts a deadline that passed. Any other answer shows that the node does not hang."""
        with self._lock:
            self._late = self._late + 1 if isinstance(error, DeadlinePassed) else 0

    def probe(self, seconds: float) -> None:
        """Ends the node's being away if it answers. Raises a ``RemoteError`` otherwise."""
        connection = self._pool.take(monotonic() + seconds, insist=True)
        try:
            ping(connection)
        finally:
            self._pool.give(connection)
        self.note(None)

    def close(self) -> None:
        """Ends the connections, those in use too."""
        self._pool.close()
