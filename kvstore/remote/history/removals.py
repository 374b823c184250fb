"""Removals for all hosts: later revisions of a namespace's shards, until the engine has them."""

import os
from collections.abc import Callable, Container, Iterable, Mapping
from heapq import nsmallest
from threading import Thread
from typing import Final

import structlog

from kvstore.remote.errors import RemoteError
from kvstore.remote.history.controls import Control, Controls
from kvstore.remote.history.due_queue import DueQueue
from kvstore.remote.history.journal import RemovalJournal
from kvstore.remote.history.remote_namespaces import NamespaceRecord, RemoteNamespaces
from kvstore.remote.secret.names import SHARD_COUNT
from kvstore.remote.secret.revisions import REMOVAL_BYTES, Age, Revision, RevisionCodec
from kvstore.service.clock import Clock
from kvstore.storage.page_store import Done

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Any shard can have pages after a removed one.
ALL_SHARDS: Final = range(SHARD_COUNT)
# The others are read again between the writes of these halves.
HALVES: Final = (ALL_SHARDS[: SHARD_COUNT // 2], ALL_SHARDS[SHARD_COUNT // 2 :])
CLOSE_SECONDS: Final = 5.0
# Removals that a check forgets at most, each of which it writes to a file.
MOST_OVER: Final = 64
# Namespaces that are compared each minute without a reason to doubt them. Each takes 64 values, in
# one call: 256 took 1.8 to 3.1 s of processor time on Valkey, at a load of 14. A failure is a
# reason, and so is any use: these compare at once, whatever the number.
MOST_A_MINUTE: Final = 64


class Outdone(Exception):
    """Another host removed pages of the namespace at the same time, and its revision stays."""


class RemoteRemovals:
    """Threads that carry out removals, and repeat those that the engine forgot. Thread-safe.

    ``unheard`` is called with the digest of a namespace of which another host removed pages too.
    ``call`` calls the callers' callbacks. Each control value is written within ``short_seconds``,
    and all of a namespace are read within ``long_seconds``.
    """

    def __init__(
        self,
        namespaces: RemoteNamespaces,
        controls: Controls,
        codec: RevisionCodec,
        journal: RemovalJournal,
        clock: Clock,
        *,
        call: Callable[[Done, bool], None],
        thread_count: int,
        short_seconds: float,
        long_seconds: float,
    ) -> None:
        self.unheard: Callable[[bytes], None] = lambda _: None
        self._namespaces = namespaces
        self._controls = controls
        self._codec = codec
        self._journal = journal
        self._clock = clock
        self._call = call
        self._short_seconds = short_seconds
        self._long_seconds = long_seconds
        self._due = DueQueue(clock)
        # Namespaces of which the log has said that their removal waits.
        self._told: set[bytes] = set()
        self._threads = [
            Thread(target=self._run, name=f"kv-remote-removals-{number}", daemon=True)
            for number in range(thread_count)
        ]

    def start(self) -> None:
        """Adds the removals of the journal, and starts the threads."""
        for digest, entry in self._journal.all():
            if entry.is_owed or entry.removed_at:
                self._namespaces.load(digest, entry)
                self._due.add(digest)
        for each in self._threads:
            each.start()

    @property
    def pending_count(self) -> int:
        """Namespaces whose removal the engine has not acknowledged."""
        with self._namespaces.mutex:
            return sum(each.is_owed for each in self._namespaces.hidden())

    def add(self, digest: bytes) -> None:
        """Adds a namespace whose removal is not confirmed, or may be forgotten."""
        self._due.add(digest)

    def doubt(self) -> None:
        """Hides the namespaces whose removals the engine may forget, since it is away."""
        with self._namespaces.mutex:
            for each in self._namespaces.removed():
                each.is_unsure = True

    def check(self) -> None:
        """Compares with the engine the removals of this host, any of which it may have forgotten.

        Call it after a failure. All of them are compared, by the threads, one after another.
        """
        with self._namespaces.mutex:
            removed = self._namespaces.removed()
        self._check(removed)

    def check_oldest(self) -> None:
        """Compares the removals that were not compared for the longest time. Call it each minute.

        A host's removals within the life of its pages have no bound, so these have one.
        """
        with self._namespaces.mutex:
            removed = self._namespaces.removed()
            oldest = nsmallest(MOST_A_MINUTE, removed, key=lambda each: each.compared_at)
            over = [each for each in removed if self._journal.is_over(each.removed_at)][:MOST_OVER]
            for each in over:
                each.removed_at = 0.0
        for each in over:
            self._namespaces.save(each)
        self._check(oldest)

    def _check(self, removed: Iterable[NamespaceRecord]) -> None:
        with self._namespaces.mutex:
            hidden = self._namespaces.hidden()
        self._due.wake()
        for each in [*removed, *hidden]:
            self._due.add(each.digest)

    def close(self) -> None:
        """Ends the threads. Removals that wait are answered with False, and stay in the journal."""
        self._due.close()
        for each in self._threads:
            each.join(CLOSE_SECONDS)
        with self._namespaces.mutex:
            hidden = self._namespaces.hidden()
            owed = [(each, _answers(each)) for each in hidden if each.is_owed]
        for record, answers in owed:
            self._namespaces.save(record)
            self._answer(answers, succeeded=False)

    def _run(self) -> None:
        while (digest := self._due.take()) is not None:
            succeeded = False
            try:
                self._settle(digest)
                succeeded = True
                self._told.discard(digest)
            except (RemoteError, Outdone) as error:
                if digest not in self._told:
                    self._told.add(digest)
                    log.warning("remote_removal_waits", why=f"{type(error).__name__}: {error}")
            except Exception:
                log.exception("remote_removal_failed")
            self._due.finish(digest, succeeded=succeeded)

    def _settle(self, digest: bytes) -> None:
        with self._namespaces.record(digest) as record:
            epoch, is_owed = record.epoch, record.is_owed
            known = dict(record.known)
        if is_owed:
            if record.saved_epoch != epoch:
                self._namespaces.save(record)
            try:
                self._renew(record, epoch, known)
            finally:
                # A failure too: the next attempt may see only what this one wrote.
                self._tell(record)
        else:
            self._repeat(record, known)

    def _renew(self, record: NamespaceRecord, epoch: int, known: Mapping[int, Revision]) -> None:
        """Writes a later revision for each shard, and reads all of them again.

        Raises ``Outdone`` if another host wrote over one of them.
        """
        if record.written_epoch != epoch:
            record.written, record.written_epoch = {}, epoch
        self._write_later(record, known)
        written = record.written
        ages = {
            control.revision.age(written[shard]) if control.revision else Age.EARLIER
            for shard, control in self._read(record).items()
        }
        if not ages.isdisjoint({Age.EARLIER, Age.FORKED}):
            raise Outdone("another host removed pages of the namespace at the same time")
        with self._namespaces.mutex:
            record.removed_at = self._journal.now()
            record.compared_at = self._clock()
            record.unheard += Age.LATER in ages
            if record.is_unheard:
                # The listener may have read the revisions before these were written. Counted up,
                # it reads them again, and so this host knows its own removal too.
                record.unheard += 1
            else:
                self._namespaces.accept(record, written)
            # Removals that came meanwhile are due.
            is_last = record.epoch == epoch
            record.own_removals.clear()
            record.written_epoch = -1
            record.is_owed = record.is_owed and not is_last
            record.is_unsure = False
            # Those of a removal that comes from now on wait for it.
            answers = _answers(record) if is_last else []
        self._namespaces.save(record)
        self._answer(answers, succeeded=True)
        if not is_last:
            self._due.add(record.digest)

    def _write_later(self, record: NamespaceRecord, known: Mapping[int, Revision]) -> None:
        """Writes a later revision for each shard that has none of this removal.

        Before the second half it reads the revisions again. Another host's removal that ended
        before is seen there, or after the last write, whatever this host writes over.
        """
        seen, written, failure = self._read(record), record.written, None
        self._note(record, _unheard(seen, known, record.own_removals))
        removal = os.urandom(REMOVAL_BYTES)
        record.own_removals.add(removal)
        for half in HALVES:
            if half is not HALVES[0]:
                before, seen = seen, self._read(record)
                found = {shard: each.revision for shard, each in before.items() if each.revision}
                others = {shard: seen[shard] for shard in half}
                self._note(record, _unheard(others, found, record.own_removals))
            for shard in half:
                # Written by an attempt that failed at another shard: other hosts hear of it once.
                if shard in written and seen[shard].revision == written[shard]:
                    continue
                latest = max(filter(None, (seen[shard].revision, known.get(shard))), default=None)
                revision = self._codec.removed(latest, removal)
                try:
                    self._write(record, shard, revision)
                    written[shard] = revision
                except RemoteError as error:
                    failure = error
        if failure is not None:
            raise failure

    def _note(self, record: NamespaceRecord, is_unheard: bool) -> None:  # noqa: FBT001  # a finding
        """Notes a removal by another host, before its revision is written over."""
        with self._namespaces.mutex:
            record.unheard += is_unheard

    def _tell(self, record: NamespaceRecord) -> None:
        """Tells of the removals by other hosts that were noted."""
        with self._namespaces.mutex:
            is_unheard = record.is_unheard
        if is_unheard:
            self.unheard(record.digest)

    def _repeat(self, record: NamespaceRecord, known: Mapping[int, Revision]) -> None:
        """Writes revisions as late as the known ones where the engine has earlier ones, or none.

        They are new ones. If another host writes a later one at the same moment, and this host
        writes over it, no page from before can be found. If this host sees that it did so, it
        removes the namespace, of which all hosts then hear.
        """
        seen = self._read(record)
        repeated = [
            shard
            for shard, revision in known.items()
            # One that is away is compared again within a minute, and at its next use.
            if not seen[shard].is_away and _is_earlier(seen[shard], revision)
        ]
        middle = len(repeated) // 2
        is_crossed = False
        for part in (repeated[:middle], repeated[middle:]):
            for shard in part:
                self._restore(record, shard, seen[shard], known[shard])
            if part:
                again = self._read(record)
                is_crossed |= _unheard(again, known, ())
        ages = {
            control.revision.age(known[shard])
            for shard, control in seen.items()
            if control.revision and shard in known
        }
        with self._namespaces.mutex:
            record.is_unsure = False
            record.compared_at = self._clock()
            if is_crossed or Age.FORKED in ages:
                record.epoch += 1
                record.is_owed = True
            is_unheard = is_crossed or not ages.isdisjoint({Age.LATER, Age.FORKED})
            record.epoch += is_unheard
            record.unheard += is_unheard
            # Those that were written are seen in the engine at their next use.
            record.live.clear()
            is_owed = record.is_owed
        if is_owed:
            self._due.add(record.digest)
        if is_unheard:
            self.unheard(record.digest)

    def _restore(
        self, record: NamespaceRecord, shard: int, found: Control, known: Revision
    ) -> None:
        """Writes a revision of the known state, where the engine has an earlier one or none."""
        restored = self._codec.restored(known)
        if found.revision is None:
            deadline = self._clock() + self._short_seconds
            self._controls.create(record.digest, shard, restored, deadline)
            return
        log.warning("remote_removal_repeated", shard=shard)
        self._write(record, shard, restored)

    def _read(self, record: NamespaceRecord) -> Mapping[int, Control]:
        deadline = self._clock() + self._long_seconds
        return self._controls.read(record.digest, ALL_SHARDS, deadline)

    def _write(self, record: NamespaceRecord, shard: int, revision: Revision) -> None:
        deadline = self._clock() + self._short_seconds
        self._controls.write(record.digest, shard, revision, deadline)

    def _answer(self, answers: Iterable[Done], *, succeeded: bool) -> None:
        for each in answers:
            self._call(each, succeeded)


def _answers(record: NamespaceRecord) -> list[Done]:
    """Takes the callbacks of the removals so far; under the mutex."""
    answers, record.answers = record.answers, []
    return answers


def _is_earlier(found: Control, known: Revision) -> bool:
    """Returns whether the engine has no revision, or an earlier one than this host knows."""
    return found.revision is None or found.revision.age(known) is Age.EARLIER


def _unheard(
    seen: Mapping[int, Control], known: Mapping[int, Revision], own: Container[bytes]
) -> bool:
    """Returns whether the engine shows a removal by another host that this one has not heard of."""
    return any(
        control.revision.age(known.get(shard)) in {Age.LATER, Age.FORKED}
        for shard, control in seen.items()
        if control.revision and control.revision.removal not in own
    )
