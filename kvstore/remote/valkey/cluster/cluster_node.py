"""One node of a cluster: its connections, and the breaker that keeps calls from waiting for it."""

import os
from collections.abc import Callable
from functools import partial
from threading import Lock
from time import monotonic
from typing import Final

from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineRefused,
    EngineUnreachable,
    Reaction,
    RemoteError,
)
from kvstore.remote.liveness.breaker import Breaker
from kvstore.remote.liveness.probe import CANARY_LIFE_MS, CanaryLost, probe_pauses
from kvstore.remote.valkey.address import EngineAddress
from kvstore.remote.valkey.commands import engine_ms, ping, send_set
from kvstore.remote.valkey.resp import RespConnection, encoded

# As the probe of an engine: a node can answer a ping and lose all large packets.
PROBE_BYTES: Final = 1 << 20
# A node's names are misses while it waits for a probe, so it waits less than a whole engine.
MOST_PROBE_SECONDS: Final = 1.0
# A deadline that passes says something of a node that had this share of a call's usual time: a node
# gets half of the time that is left, and a request may leave less than the usual time.
FAIR_SHARE: Final = 0.25


class ClusterNode:
    """A node with a pool of connections. Thread-safe.

    A node that hangs would cost each call its whole deadline. So it has a breaker of its own: after
    some failures calls fail at once, until :meth:`probe` succeeds. No request is a probe. A call's
    deadline is fair if the node got a share of ``usual_seconds``. ``returned`` is called when the
    node answers again.
    """

    def __init__(
        self,
        address: EngineAddress,
        pool: ConnectionPool[RespConnection],
        *,
        usual_seconds: float,
        returned: Callable[[], None],
    ) -> None:
        self.address = address
        self.name = f"{address.host}:{address.port}"
        self.answers = True
        """The last call, or new connection, had an answer. True before the first one."""
        self._pool = pool
        self._returned = returned
        self._fair_seconds = FAIR_SHARE * usual_seconds
        self._breaker = Breaker(monotonic, node=self.name)
        self._lock = Lock()
        self._pauses = probe_pauses(lambda: False)
        self._probe_at = 0.0

    @property
    def is_away(self) -> bool:
        """Calls fail at once."""
        return self._breaker.is_open

    @property
    def needs_probe(self) -> bool:
        """The node is away, did not answer, or its last connection could not be made."""
        return self.is_away or not self.answers or self._pool.has_failed

    def take(self, deadline: float) -> RespConnection:
        """Returns a connection; the caller gives it back. Raises a ``RemoteError``."""
        if self.is_away:
            raise EngineUnreachable(f"the node {self.address} is away: {self._breaker.why}")
        return self._pool.take(deadline)

    def give_back(self, connection: RespConnection) -> None:
        """Takes a connection back."""
        self._pool.give(connection)

    def succeed(self) -> None:
        """Notes that the node answered a call."""
        self.note_answer()
        self._breaker.succeed()

    def fail(self, error: RemoteError, began: float, waited: float) -> None:
        """Notes the error of a call that began at a time, and waited so long for this node."""
        if isinstance(error, DeadlinePassed) and waited < self._fair_seconds:
            return
        if error.reaction is Reaction.AWAY:
            self.answers = False
            self._breaker.fail(error, began)

    def note_silence(self) -> None:
        """Notes that a new connection had no answer."""
        self.answers = False

    def note_answer(self) -> None:
        """Notes that the node answered, which says nothing of large values."""
        if not self.answers:
            self.answers = True
            self._returned()

    def is_due(self) -> bool:
        """Returns whether to probe a node that is away now: the pauses double up to a limit."""
        with self._lock:
            now = monotonic()
            if now < self._probe_at:
                return False
            self._probe_at = now + min(next(self._pauses), MOST_PROBE_SECONDS)
            return True

    def ping(self, seconds: float) -> None:
        """Returns if the node answers. Makes a connection first if none exists."""
        self._try(seconds, ping)
        self.note_answer()

    def probe(self, seconds: float, canary: Callable[[], bytes | None]) -> None:
        """Ends the node's being away if it answers. Raises a ``RemoteError`` otherwise.

        A node that is away has to take and return a value of ``PROBE_BYTES``. ``canary`` makes a
        name in one of its slots, or None if it has none; then an answer is enough.
        """
        was_away = self.is_away
        self._try(seconds, ping)
        name = canary() if was_away else None
        if name is not None:
            self._try(seconds, partial(_pass_canary, name=name))
        with self._lock:
            self._pauses = probe_pauses(lambda: False)
        if was_away:
            self._breaker.close()
        self.note_answer()

    def _try(self, seconds: float, work: Callable[[RespConnection], None]) -> None:
        """Runs something on a connection, whether or not the node is away."""
        connection = self._pool.take(monotonic() + seconds, insist=True)
        try:
            work(connection)
        finally:
            self._pool.give(connection)

    def close(self) -> None:
        """Ends the connections, those in use too."""
        self._pool.close()


def _pass_canary(connection: RespConnection, name: bytes) -> None:
    """Writes and reads a large value. A node that refuses writes, and answers, may be read from."""
    sent, got = memoryview(os.urandom(PROBE_BYTES)), memoryview(bytearray(PROBE_BYTES))
    send_set(connection, name, sent, engine_ms(connection) + CANARY_LIFE_MS)
    try:
        refused = connection.outcome()
    except RemoteError as error:
        if connection.is_broken or error.reaction is Reaction.AWAY:
            raise
        refused = EngineRefused(str(error))
    if refused is not None:
        return
    connection.send(encoded(b"GET", name))
    result = connection.value(got)
    if result is not ReadResult.READ or got != sent:
        raise CanaryLost(f"a value of {PROBE_BYTES} bytes is {result.value} after its write")
