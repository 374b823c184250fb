"""Control values of shards: how revisions are read from an engine and written to it."""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple, assert_never

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import NodeAway
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.remote.secret.names import RemoteNames
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

    def read(
        self, namespace: bytes, shards: Sequence[int], deadline: float
    ) -> Mapping[int, Control]:
        """Returns the control value of each shard, in as few trips as the engine can.

        Raises a ``RemoteError`` if no node of the engine answers.
        """
        if len(shards) != 1:
            return self._read_many(namespace, shards, deadline)
        [shard] = shards
        try:
            value = self._calls.control(self._names.control(namespace, shard), deadline)
        except NodeAway:
            return {shard: Control(is_away=True)}
        return {shard: self._decoded(namespace, shard, value)}

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
