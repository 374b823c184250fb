"""The revisions under which pages may be found and written at present."""

from collections.abc import Callable, Mapping, Sequence

import structlog

from kvstore.remote.errors import NodeAway
from kvstore.remote.history.controls import Control, Controls
from kvstore.remote.history.remote_namespaces import NamespaceRecord, RemoteNamespaces
from kvstore.remote.secret.revisions import Age, Revision, RevisionCodec

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()


class RevisionCounters:
    """Control values that were lost, and forged ones; each number only grows."""

    def __init__(self) -> None:
        self.lost = 0
        self.forged = 0


class ShardRevisions:
    """Compares the engine's revisions with those that this host knows. Thread-safe.

    ``unheard`` is called with the digest of a namespace of which another host removed pages, and
    ``forgotten`` with that of one whose removals the engine forgot. By then it is hidden. Without
    ``writes`` no control value is made.
    """

    def __init__(
        self,
        namespaces: RemoteNamespaces,
        controls: Controls,
        codec: RevisionCodec,
        *,
        writes: bool,
    ) -> None:
        self.counters = RevisionCounters()
        self.unheard: Callable[[bytes], None] = lambda _: None
        self.forgotten: Callable[[bytes], None] = lambda _: None
        self._namespaces = namespaces
        self._controls = controls
        self._codec = codec
        self._writes = writes

    def current(
        self, record: NamespaceRecord, epoch: int, shards: Sequence[int], deadline: float
    ) -> Mapping[int, Revision] | None:
        """Reads the revisions of shards, which this host has heard of. Raises a ``RemoteError``.

        Leaves out shards on a node that is away, and those without a revision if none may be made.
        Raises ``NodeAway`` if the nodes of all shards are away.
        Returns None if pages were removed since ``epoch``, or if the engine shows a removal that
        this host has not heard of, or one too few.
        """
        seen = dict(self._controls.read(record.digest, shards, deadline))
        if seen and all(each.is_away for each in seen.values()):
            raise NodeAway(f"the nodes of all {len(seen)} shards are away")
        for shard, control in seen.items():
            if control.revision is None and self._writes and not control.is_away:
                seen[shard] = self._replaced(record, shard, control, deadline)
        return self._accepted(record, epoch, seen)

    def compare(
        self, record: NamespaceRecord, epoch: int, shards: Sequence[int], deadline: float
    ) -> None:
        """Notices removals in some shards as ``current`` does, and makes no control value."""
        self._accepted(record, epoch, self._controls.read(record.digest, shards, deadline))

    def _accepted(
        self, record: NamespaceRecord, epoch: int, seen: Mapping[int, Control]
    ) -> Mapping[int, Revision] | None:
        """Returns the revisions that the engine showed if this host has heard of all of them."""
        revisions = {shard: each.revision for shard, each in seen.items() if each.revision}
        with self._namespaces.mutex:
            if not self._namespaces.is_current(record, epoch):
                return None
            ages = {each.age(record.known.get(shard)) for shard, each in revisions.items()}
            if ages <= {Age.SAME}:
                self._namespaces.accept(record, revisions)
                return revisions
            # Counted up, pages on their way are dropped.
            record.epoch += 1
            record.is_owed |= Age.FORKED in ages
            record.is_unsure |= Age.EARLIER in ages
            record.unheard += not ages.isdisjoint({Age.LATER, Age.FORKED})
        self._tell(record, ages)
        return None

    def _tell(self, record: NamespaceRecord, ages: set[Age]) -> None:
        self.counters.lost += Age.EARLIER in ages
        if not ages.isdisjoint({Age.EARLIER, Age.FORKED}):
            self.forgotten(record.digest)
        if not ages.isdisjoint({Age.LATER, Age.FORKED}):
            self.unheard(record.digest)

    def _replaced(
        self, record: NamespaceRecord, shard: int, control: Control, deadline: float
    ) -> Control:
        """Writes a revision if there is none, which makes earlier pages unreachable."""
        with self._namespaces.mutex:
            known = record.known.get(shard)
            was_seen = shard in record.live or known is not None
        revision = self._codec.restored(known)
        if control.is_forged:
            self.counters.forged += 1
            log.error("remote_revision_forged", advice="somebody else writes to the engine")
            self._controls.write(record.digest, shard, revision, deadline)
            return Control(revision)
        self.counters.lost += was_seen
        return self._controls.create(record.digest, shard, revision, deadline)
