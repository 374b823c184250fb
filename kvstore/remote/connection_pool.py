"""Connections to one server or helper, which a thread of the pool's own makes.

Looking up a name, the handshake of TLS and authentication can take longer than any request may
wait, and the C library's resolver has no deadline. So no request does any of it. A request gets
a connection that is ready, or an error at once if the last attempt failed.
"""

import random
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic
from typing import Final, Generic, Protocol, TypeVar

from kvstore.remote.errors import DeadlinePassed, EngineClosed, EngineUnreachable, RemoteError

FIRST_BACKOFF: Final = 0.1
MOST_BACKOFF: Final = 5.0
CLOSE_SECONDS: Final = 1.0


class PooledConnection(Protocol):
    """A connection, for one thread at a time."""

    deadline: float
    """Every wait of the connection ends at this time."""

    @property
    def is_reusable(self) -> bool:
        """Another call can use the connection."""
        ...

    def is_quiet(self) -> bool:
        """Returns whether an idle connection is open, and silent as it should be."""
        ...

    def interrupt(self) -> None:
        """Ends the waits of the thread that uses the connection. Any thread may call this."""
        ...

    def close(self) -> None:
        """Closes the connection. Only the thread that uses it may do so."""
        ...


C = TypeVar("C", bound=PooledConnection)


class ConnectionPool(Generic[C]):
    """Up to ``size`` connections, each for one thread at a time. Thread-safe.

    ``connect`` makes one, and raises a ``RemoteError``. An attempt that takes longer than
    ``connect_seconds`` counts as failed for those who wait, although it goes on.
    """

    def __init__(self, connect: Callable[[], C], *, size: int, connect_seconds: float) -> None:
        self._connect = connect
        self._size = size
        self._connect_seconds = connect_seconds
        self._changed = Condition()
        self._idle: list[C] = []
        self._used: set[C] = set()
        self._error: RemoteError | None = None
        self._attempt_start = monotonic()
        self._is_wanted = False
        self._is_closed = False
        self._thread = Thread(target=self._make, name="kv-remote-connect", daemon=True)
        self._thread.start()

    @property
    def has_failed(self) -> bool:
        """The last attempt to make a connection failed."""
        with self._changed:
            return self._error is not None

    def take(self, deadline: float, *, insist: bool = False) -> C:
        """Returns a connection with its deadline set. The caller gives it back.

        Waits while others use all connections, or while the first is being made. If the last
        attempt failed, raises its error at once. With ``insist``, makes a new attempt first.
        """
        with self._changed:
            if insist:
                self._start_again()
            while True:
                if self._is_closed:
                    raise EngineClosed("the engine was closed")
                if found := self._ready():
                    found.deadline = deadline
                    self._used.add(found)
                    return found
                end = deadline if self._used else self._connection_due(deadline)
                if (left := end - monotonic()) <= 0:
                    if end < deadline:
                        raise EngineUnreachable("a connection takes long to make")
                    raise DeadlinePassed("no connection was free in time")
                self._changed.wait(left)

    def give(self, connection: C) -> None:
        """Takes a connection back, and closes it if it is not reusable."""
        with self._changed:
            self._used.remove(connection)
            if not connection.is_reusable or self._is_closed:
                self._start_again()
                connection.close()
            else:
                self._idle.append(connection)
            self._changed.notify_all()

    def close(self) -> None:
        """Ends all connections, those in use too. Waits a second at most for the own thread."""
        with self._changed:
            self._is_closed = True
            for each in self._idle:
                each.close()
            self._idle.clear()
            # Their threads close them: a closed descriptor could be another's by the next read.
            for each in self._used:
                each.interrupt()
            self._changed.notify_all()
        self._thread.join(CLOSE_SECONDS)

    def _ready(self) -> C | None:
        """Returns an idle connection that is still open, the latest used first."""
        while self._idle:
            found = self._idle.pop()
            if found.is_quiet():
                return found
            found.close()
            self._start_again()
        return None

    def _start_again(self) -> None:
        """Makes a new attempt at once if the last connection ended, also after a failed attempt."""
        if not self._idle and not self._used:
            self._error, self._is_wanted = None, True
            self._attempt_start = monotonic()
            self._changed.notify_all()

    def _connection_due(self, deadline: float) -> float:
        if self._error is not None:
            raise type(self._error)(str(self._error))
        return min(deadline, self._attempt_start + self._connect_seconds)

    def _make(self) -> None:
        """Makes connections whenever some are missing, until the pool is closed."""
        backoff = FIRST_BACKOFF
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closed or self._missing())
                if self._is_closed:
                    return
            try:
                made = self._connect()
            except RemoteError as error:
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                    self._is_wanted = False
                    self._changed.wait_for(
                        lambda: self._is_closed or self._is_wanted,
                        backoff * random.uniform(0.5, 1.5),  # noqa: S311  # no secret
                    )
                backoff = min(2 * backoff, MOST_BACKOFF)
                continue
            backoff = FIRST_BACKOFF
            with self._changed:
                self._error = None
                if self._is_closed:
                    made.close()
                else:
                    self._idle.append(made)
                self._changed.notify_all()

    def _missing(self) -> bool:
        return len(self._idle) + len(self._used) < self._size
