"""Control values of shards: how revisions are read from an engine and written to it."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, assert_never

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import Reaction, RemoteError
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.remote.secret.names import SHARD_COUNT, RemoteNames
from kvstore.remote.secret.revisions import CONTROL_BYTES, ForgedRevision, Revision, RevisionCodec

# Control values outlive the pages that need them, which refresh them.
LIVES: Final = 4


class Control(NamedTuple):
    """A shard's control value in the engine.

    Without a revision it is absent, forged, or on a node that is away while others answer.
    """

    revision: Revision | None = None
    is_forged: bool = False
    is_away: bool = False


class Controls:
    """Reads and writes control values, each of which lives for ``LIVES`` times the pages' life."""

    def __init__(
        self, calls: EngineCalls, names: RemoteNames, codec: RevisionCodec, *, ttl_seconds: float
    ) -> None:
        self.life_ms = int(LIVES * ttl_seconds * 1000)
        self._calls = calls
        self._names = names
        self._codec = codec
        self._away: frozenset[int] = frozenset()

    def read(
        self, namespace: bytes, shards: Sequence[int], deadline: float
    ) -> Mapping[int, Control]:
        """Returns the control value of each shard, in as few trips as the engine can.

        Raises a ``RemoteError`` if no node answers that has one of them. A single one that was away
        is asked for beside another one, which tells a node that is away from an engine.
        """
        if len(shards) == 1 and not self._away:
            [shard] = shards
            try:
                value = self._calls.control(self._names.control(namespace, shard), deadline)
            except RemoteError as error:
                if error.reaction is Reaction.AWAY:
                    self._note_away([shard])
                raise
            return {shard: self._decoded(namespace, shard, value)}
        asked = [*shards]
        if len(shards) == 1:
            asked.append((shards[0] + SHARD_COUNT // 2) % SHARD_COUNT)
        found = self._read_many(namespace, asked, deadline)
        self._note_away((shard for shard, each in found.items() if each.is_away), found)
        return {shard: found[shard] for shard in shards}

    def write(self, namespace: bytes, shard: int, revision: Revision, deadline: float) -> None:
        """Writes a revision over whatever is there."""
        self._write(namespace, shard, revision, deadline, only_if_absent=False)

    def create(self, namespace: bytes, shard: int, revision: Revision, deadline: float) -> Control:
        """Writes a revision if there is none. Returns what is there then."""
        if self._write(namespace, shard, revision, deadline, only_if_absent=True):
            return Control(revision)
        return self.read(namespace, [shard], deadline)[shard]

    def name(self, namespace: bytes, shard: int) -> bytes:
        """Returns the name of a shard's control value."""
        return self._names.control(namespace, shard)

    def _read_many(
        self, namespace: bytes, shards: Sequence[int], deadline: float
    ) -> dict[int, Control]:
        """Reads values of the usual length. Another length is one that no host wrote."""
        names = [self._names.control(namespace, each) for each in shards]
        buffers = [memoryview(bytearray(CONTROL_BYTES)) for _ in names]
        results = self._calls.get_many(names, buffers, deadline)
        return {
            shard: self._control(namespace, shard, result, buffer)
            for shard, result, buffer in zip(shards, results, buffers, strict=True)
        }

    def _control(
        self, namespace: bytes, shard: int, result: ReadResult, buffer: memoryview
    ) -> Control:
        match result:
            case ReadResult.READ:
                return self._decoded(namespace, shard, bytes(buffer))
            case ReadResult.MISSING:
                return Control()
            case ReadResult.WRONG_SIZE:
                return Control(is_forged=True)
            case ReadResult.AWAY:
                return Control(is_away=True)
        assert_never(result)

    def _note_away(self, away: Iterable[int], asked: Iterable[int] = ()) -> None:
        """Remembers the shards that were away when they were asked for last."""
        self._away = self._away.difference(asked).union(away)

    def _decoded(self, namespace: bytes, shard: int, value: bytes | None) -> Control:
        if value is None:
            return Control()
        try:
            return Control(self._codec.decoded(namespace, shard, value))
        except ForgedRevision:
            return Control(is_forged=True)

    def _write(
        self,
        namespace: bytes,
        shard: int,
        revision: Revision,
        deadline: float,
        *,
        only_if_absent: bool,
    ) -> bool:
        return self._calls.set_control(
            self._names.control(namespace, shard),
            self._codec.encoded(namespace, shard, revision),
            self.life_ms,
            deadline,
            only_if_absent=only_if_absent,
        )
