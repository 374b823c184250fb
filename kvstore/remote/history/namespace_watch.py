"""The watch: namespaces in use are compared with the engine, also if nobody asks it for pages.

A match that this host's memory answers whole does not look in the engine, and a host that writes
nothing has no other reason to. So it would never hear what other hosts removed.
"""

from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from kvstore.remote.history.remote_namespaces import RemoteNamespaces
from kvstore.remote.history.shard_revisions import ShardRevisions
from kvstore.remote.secret.names import SHARD_COUNT
from kvstore.service.clock import Clock

# Each namespace is compared once in a round, unless there are more than a step can take.
ROUND_SECONDS: Final = 60.0
STEPS_A_ROUND: Final = 60
MOST_A_STEP: Final = 64
# A removal changes all shards. A few are enough to see it, should the engine have lost one.
SHARDS_AT_ONCE: Final = 4


class NamespaceWatch:
    """Compares a part of the namespaces at each step. For one thread.

    ``in_use`` returns the digests of the namespaces that have pages on this host. A call of the
    engine may take ``seconds``.
    """

    def __init__(
        self,
        namespaces: RemoteNamespaces,
        gate: ShardRevisions,
        clock: Clock,
        *,
        seconds: float,
    ) -> None:
        self.in_use: Callable[[], Iterable[bytes]] = lambda: ()
        self._namespaces = namespaces
        self._gate = gate
        self._clock = clock
        self._seconds = seconds
        self._left: deque[bytes] = deque()
        self._at_once = 0
        self._round_at = clock()
        self._shard = 0

    def step(self) -> None:
        """Compares the next namespaces. Raises a ``RemoteError`` at the first call that fails."""
        if not self._left and self._clock() >= self._round_at:
            self._begin()
        for _ in range(min(self._at_once, len(self._left))):
            # One that fails is not the first of the next step too.
            self._compare(self._left.popleft())

    def _begin(self) -> None:
        self._round_at = self._clock() + ROUND_SECONDS
        self._left.extend(self.in_use())
        self._at_once = min(-(-len(self._left) // STEPS_A_ROUND), MOST_A_STEP)
        # Other shards each time.
        self._shard = (self._shard + 1) % SHARD_COUNT

    def _compare(self, digest: bytes) -> None:
        with self._namespaces.record(digest) as record:
            epoch, is_hidden = record.epoch, record.is_hidden
        if not is_hidden:
            apart = SHARD_COUNT // SHARDS_AT_ONCE
            shards = [(self._shard + apart * each) % SHARD_COUNT for each in range(SHARDS_AT_ONCE)]
            self._gate.compare(record, epoch, shards, self._clock() + self._seconds)
