"""A page store on a remote engine that hosts share, assembled of its parts.

::

    looks, reads, writes ── shard gate ──┐
    removals, reviser ── controls ───────┴── engine calls ── engine
                                              breaker, probe

The engine may be slow, lose values, or be away. A call waits until its deadline at most, and fails
at once while the breaker is open. No host finds removed pages again, also if the engine restores
them: ``history`` has the revisions by which hosts notice.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Final, TypeVar

import structlog

from kvstore.remote.engine import RemoteEngine
from kvstore.remote.errors import RemoteError
from kvstore.remote.expiry import BUCKETS_IN_A_LIFE, EngineClock, Expiry
from kvstore.remote.history.controls import Controls
from kvstore.remote.history.corruption_limit import CorruptionLimit
from kvstore.remote.history.journal import RemovalJournal
from kvstore.remote.history.namespace_watch import NamespaceWatch
from kvstore.remote.history.remote_namespaces import NamespaceRecord, RemoteNamespaces
from kvstore.remote.history.removals import RemoteRemovals
from kvstore.remote.history.reviser import Reviser
from kvstore.remote.history.shard_revisions import ShardRevisions
from kvstore.remote.liveness.breaker import Breaker
from kvstore.remote.liveness.engine_calls import EngineCalls
from kvstore.remote.liveness.look_worth import LookWorth
from kvstore.remote.liveness.probe import Probe
from kvstore.remote.liveness.ramp import Ramp
from kvstore.remote.liveness.write_pace import WritePace
from kvstore.remote.remote_settings import RemoteSettings
from kvstore.remote.remote_use import LookAnswer, Refusal, Rejection, RemoteUse
from kvstore.remote.secret.names import RemoteNames
from kvstore.remote.secret.revisions import RevisionCodec
from kvstore.remote.secret.sealing import PageSealer
from kvstore.remote.transfers.context import TransferContext
from kvstore.remote.transfers.counters import RemoteCounters, by_reason
from kvstore.remote.transfers.lineage import Lineage
from kvstore.remote.transfers.looks import Looks
from kvstore.remote.transfers.page_names import PageNames, Refreshes
from kvstore.remote.transfers.reader import FoundPages, Reader, ReadJob
from kvstore.remote.transfers.upkeep import Upkeep
from kvstore.remote.transfers.write_queue import QueuedWrite, WriteQueue
from kvstore.remote.transfers.writer import Writer
from kvstore.service.clock import Clock
from kvstore.storage.page_store import (
    Content,
    Done,
    PageKey,
    PageRead,
    PageWrite,
    Presence,
    ReadAnswer,
    StoreFacts,
    StoreState,
    StoreUse,
    size_of,
)

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")

# A look for 128 pages took 0.65 to 1.3 ms on Valkey over loopback.
FACTS: Final = StoreFacts(shared=True, loses_silently=True, look_seconds=0.001)


class EngineUnsuited(ValueError):
    """The engine has no control values, so no host would hear of another's removals."""


class RemoteStore:
    """A :class:`~kvstore.storage.page_store.SharedPageStore` on an engine. Thread-safe.

    ``secret`` has 32 bytes, the same on all hosts. ``state_folder`` is this host's alone and
    outlives it. ``clock`` is that of deadlines. The engine may be away. It is closed with the
    store. Raises :class:`EngineUnsuited`, :class:`~kvstore.remote.secret.names.UnusableSecret`, and
    OSError for the folder.
    """

    facts = FACTS

    def __init__(
        self,
        engine: RemoteEngine,
        *,
        secret: bytes,
        state_folder: Path,
        clock: Clock,
        settings: RemoteSettings,
    ) -> None:
        if not engine.capabilities.revisions:
            raise EngineUnsuited("the engine has no control values: use one that has them")
        self.lost: Callable[[Sequence[PageKey]], None] = lambda _: None
        self.in_use: Callable[[], Iterable[bytes]] = lambda: ()
        self._engine = engine
        self._clock = clock
        self._settings = settings
        self._closing = Lock()
        self._is_closed = False
        self._make_liveness(secret)
        self._make_history(secret, state_folder)
        self._make_transfers(secret)
        self._start()

    # The assembly.

    def _make_liveness(self, secret: bytes) -> None:
        settings, clock = self._settings, self._clock
        seconds = settings.timeout_seconds
        self._breaker = Breaker(clock)
        self._calls = EngineCalls(self._engine, self._breaker, clock, usual_seconds=seconds)
        self._quiet_calls = EngineCalls(
            self._engine, self._breaker, clock, usual_seconds=seconds, reports=False
        )
        self._names = RemoteNames(secret)
        self._probe = Probe(
            self._quiet_calls,
            self._breaker,
            self._names,
            clock,
            canary_bytes=settings.canary_bytes,
            seconds=settings.read_seconds,
            writes=settings.writes,
        )
        self._pace = WritePace(clock)
        self._worth = LookWorth(clock)
        self._look_ramp = Ramp(settings.look_threads)

    def _make_history(self, secret: bytes, state_folder: Path) -> None:
        settings, clock = self._settings, self._clock
        codec = RevisionCodec(secret)
        self._engine_clock = EngineClock(time.time())
        journal = RemovalJournal(state_folder, self._engine_clock, ttl_seconds=settings.ttl_seconds)
        self._namespaces = RemoteNamespaces(journal)
        self._controls = Controls(self._calls, self._names, codec, ttl_seconds=settings.ttl_seconds)
        self._gate = ShardRevisions(self._namespaces, self._controls, codec, writes=settings.writes)
        self._removals = RemoteRemovals(
            self._namespaces,
            self._controls,
            codec,
            journal,
            clock,
            call=self._call,
            thread_count=settings.removal_threads,
            short_seconds=settings.timeout_seconds,
            long_seconds=settings.write_seconds,
        )
        self._watch = NamespaceWatch(
            self._namespaces, self._gate, clock, seconds=settings.timeout_seconds
        )
        self._reviser = Reviser(
            self._namespaces, self._controls, clock, seconds=settings.write_seconds
        )

    def _make_transfers(self, secret: bytes) -> None:
        settings, clock = self._settings, self._clock
        self._counters = RemoteCounters()
        self._page_names = PageNames(self._names)
        context = TransferContext(
            self._calls,
            self._gate,
            self._page_names,
            self._namespaces,
            PageSealer(secret),
            self._counters,
            clock,
            self._call,
        )
        self._lineage = Lineage()
        self._expiry = expiry = Expiry(self._engine_clock, settings.ttl_seconds)
        self._upkeep = Upkeep(
            self._quiet_calls,
            self._engine_clock,
            clock,
            read_clock=lambda: self._calls.time_ms(clock() + settings.clock_seconds),
            seconds=settings.timeout_seconds,
            tick=self._tick,
            check=self._removals.check_oldest,
            bad=self._page_names.bad,
        )
        self._refreshes = Refreshes(
            self._page_names,
            self._namespaces,
            self._controls,
            self._lineage,
            expiry,
            self._upkeep,
            self._quiet_calls,
        )
        self._looks = Looks(self._calls, self._gate, self._page_names)
        self._queue = WriteQueue(settings.queue_bytes)
        self._reader = Reader(
            context,
            thread_count=settings.read_threads,
            most_bytes=settings.reading_bytes,
            finished=self._read,
        )
        self._writer = Writer(
            context,
            self._queue,
            breaker=self._breaker,
            pace=self._pace,
            lineage=self._lineage,
            expiry=expiry,
            refreshes=self._refreshes,
            thread_count=settings.write_threads,
            seconds=settings.write_seconds,
        )

    def _start(self) -> None:
        self._breaks = 0
        self._revised: Callable[[bytes], None] = lambda _: None
        self._corruption = CorruptionLimit(self._clock)
        # The attribute changes: the store's user sets it after this.
        self._watch.in_use = lambda: self.in_use()  # noqa: PLW0108
        self._gate.unheard = self._removals.unheard = self._unheard
        self._gate.forgotten = self._removals.add
        self._breaker.opened = self._removals.doubt
        self._breaker.closed = self._returned
        parts = (self._removals, self._reviser, self._reader, self._writer)
        for part in (*parts, self._upkeep, self._probe):
            part.start()

    # The interface.

    @property
    def state(self) -> StoreState:
        """The state now. It is AWAY while the breaker is open, and never FAILED."""
        if self._is_closed:
            return StoreState.CLOSED
        return StoreState.AWAY if self._breaker.is_open else StoreState.OPEN

    @property
    def revised(self) -> Callable[[bytes], None]:
        """The listener to removals by other hosts. The host hears of none before it is set."""
        return self._revised

    @revised.setter
    def revised(self, listener: Callable[[bytes], None]) -> None:
        self._revised = listener
        self._reviser.listen(listener)

    @property
    def is_empty(self) -> bool:
        """Always False: others may write."""
        return False

    @property
    def refresh_seconds(self) -> float:
        """A bucket of expiries, or a part of a page's life on an engine that extends none.

        Such an engine, or its operator, deletes pages by their age. They are then written again.
        """
        if self._engine.capabilities.expires:
            return self._expiry.bucket_seconds
        return self._settings.ttl_seconds / BUCKETS_IN_A_LIFE

    @property
    def reading_bytes(self) -> int:
        """Bytes being read, for which a new read would wait."""
        return self._reader.reading_bytes

    @property
    def reading_room(self) -> int:
        """Bytes that may be read in addition."""
        return self._reader.room

    @property
    def writing_room(self) -> int:
        """Bytes that may be queued in addition, of which one namespace gets a part."""
        return self._queue.room

    def look(self, keys: Iterable[PageKey], deadline: float) -> int:
        """Returns how many leading pages the engine has under the present revisions.

        Waits for ``RemoteSettings.timeout_seconds`` at most. Returns 0 at once if the engine is
        away, too many others look, or the look is not worth it.
        """
        left = iter(keys)
        first = next(left, None)
        if first is None:
            return 0
        if self.state is not StoreState.OPEN or not self._worth.is_worth(first):
            self._counters.look(LookAnswer.SKIPPED)
            return 0
        if not self._look_ramp.take():
            self._counters.look(LookAnswer.SKIPPED)
            return 0
        answer = LookAnswer.FAILED
        try:
            count, answer = self._look(first, left, deadline)
        finally:
            self._look_ramp.give(succeeded=answer is not LookAnswer.FAILED)
        return count

    def there(self, keys: Sequence[PageKey]) -> list[Presence]:
        """Returns the presence of each page, and extends the lives of those that are stored."""
        stored = [False] * len(keys)
        for namespace in {each.namespace for each in keys}:
            places = [place for place, each in enumerate(keys) if each.namespace == namespace]
            found = self._there(namespace, [keys[place] for place in places])
            for place, each in zip(places, found, strict=True):
                stored[place] = each
        return [self._presence(*each) for each in zip(keys, stored, strict=True)]

    def write(self, page: PageWrite, content: Content, done: Done, *, checksum: int | None) -> bool:
        """Queues a page under the revision that this host knows of. Returns whether it did."""
        refusal = self._refusal()
        if refusal is not None:
            self._counters.refuse(refusal)
            return False
        key, size = page.key, size_of(content)
        shard = self._page_names.shard(key)
        with self._namespaces.record(key.namespace) as record:
            revision = record.known[shard] if shard in record.live else None
            is_stored = revision is not None and self._lineage.is_stored(key, revision.identity)
            is_hidden = record.is_hidden
            write = QueuedWrite(
                page=page,
                content=content,
                done=done,
                checksum=checksum or None,
                size=size,
                record=record,
                epoch=record.epoch,
                shard=shard,
                revision=revision,
                submitted=self._clock(),
            )
            # Under the mutex: a removal either finds it in the queue, or was before it.
            is_queued = not (is_stored or is_hidden) and self._queue.put(write)
            record.use_count += is_queued
        if is_queued:
            self._lineage.add(page)
            self._worth.note_written(key)
        else:
            is_known = is_stored or self._queue.is_pending(key)
            self._counters.refuse(
                Refusal.REVISION if is_hidden else None if is_known else Refusal.QUEUE
            )
        return is_queued

    def read(
        self, wanted: Sequence[PageRead], done: Callable[[ReadAnswer], None], deadline: float
    ) -> None:
        """Begins to read pages of one namespace, for ``RemoteSettings.read_seconds`` at most.

        All of them are misses if pages of the namespace are removed before the answer, here or by
        another host.
        """
        begun = self._clock()
        if not wanted or self.state is not StoreState.OPEN:
            self._call(done, ReadAnswer((None,) * len(wanted), 0, 0.0))
            return
        with self._namespaces.record(wanted[0].key.namespace) as record:
            job = ReadJob(
                wanted,
                done,
                record=record,
                epoch=record.epoch,
                begun=begun,
                deadline=min(deadline, begun + self._settings.read_seconds),
            )
            record.use_count += 1
        if not self._reader.put(job):
            self._namespaces.release(record)
            self._counters.refuse_read()
            self._call(done, ReadAnswer((None,) * len(wanted), 0, 0.0))

    def remove(self, keys: Sequence[PageKey], done: Done) -> None:
        """Removes the namespaces of some pages: a removal of pages is one of their namespaces.

        While the engine is away ``done`` waits. It gets True once the engine has all revisions,
        and False if the store is closed before. The next store on ``state_folder`` goes on.
        """
        namespaces = {each.namespace for each in keys}
        if not namespaces:
            self._call(done, not self._is_closed)
            return
        answers = _Answers(done, len(namespaces), self._call)
        for each in namespaces:
            self.remove_namespace(each, answers.take)

    def remove_corrupt(self, keys: Sequence[PageKey], done: Done) -> None:
        """Deletes pages by name, and removes their namespaces once in ten minutes at most.

        A host on which many pages changed writes no more.
        """
        self._writer.faults.add()
        namespaces = {each.namespace for each in keys}
        answers = _Answers(done, len(namespaces), self._call)
        for namespace in namespaces:
            if self._corruption.take(namespace):
                self.remove_namespace(namespace, answers.take)
            else:
                spoilt = [each for each in keys if each.namespace == namespace]
                self._delete(namespace, self._lineage.descendants(spoilt), answers.take)

    def _delete(self, namespace: bytes, keys: Sequence[PageKey], done: Done) -> None:
        """Deletes pages by the names that they have under the known revisions."""
        self._lineage.note_absent(keys, self._clock())
        with self._namespaces.record(namespace) as record:
            live = {shard: record.known[shard] for shard in record.live}
        keys = [each for each in keys if self._page_names.shard(each) in live]
        self._upkeep.unlink(self._page_names.names(keys, live), done)

    def remove_namespace(self, namespace: bytes, done: Done) -> None:
        """Removes every page of a namespace, as ``remove`` does."""
        with self._closing, self._namespaces.record(namespace) as record:
            is_taken = not self._is_closed
            if is_taken:
                record.epoch += 1
                record.is_owed = True
                record.answers.append(done)
        if not is_taken:
            self._call(done, False)  # noqa: FBT003  # as page stores tell
            return
        for write in self._queue.cancel(namespace):
            self._writer.drop(write, Refusal.REVISION)
        # A thread may come to it late, and the host may end before.
        self._namespaces.save(record)
        self._removals.add(namespace)

    def use(self) -> StoreUse:
        """Returns the counts. How many pages the engine has is not known."""
        counters = self._counters.page_counters()
        return StoreUse(self.state, 0, 0, 0, self._queue.queued_bytes, counters)

    def remote_use(self) -> RemoteUse:
        """Returns the counts and the state of this host's side."""
        counters = self._counters
        pages = counters.page_counters()
        nodes = self._engine.nodes()
        with counters.mutex:
            return RemoteUse(
                state=self.state,
                why=self._breaker.why,
                looks=by_reason(counters.looks, LookAnswer),
                look_seconds=counters.look_seconds,
                read_pages=pages.read_pages,
                read_bytes=pages.read_bytes,
                read_seconds=counters.read_seconds,
                written_pages=pages.written_pages,
                written_bytes=pages.written_bytes,
                refused_writes=by_reason(counters.refused_writes, Refusal),
                rejected_pages=by_reason(counters.rejected_pages, Rejection),
                breaker_opened=self._breaker.opened_count,
                revisions_lost=self._gate.counters.lost,
                revisions_forged=self._gate.counters.forged,
                removals_pending=self._removals.pending_count,
                queue_bytes=self._queue.queued_bytes,
                clock_skew=self._upkeep.skew,
                latency=self._worth.latency,
                node_count=nodes.total,
                nodes_away=nodes.away,
                writes_stopped=self._writer.faults.are_many,
            )

    def close(self) -> None:
        """Drops what is queued, answers all calls, and closes the engine. Idempotent."""
        with self._closing:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._breaker.end()
        for write in self._queue.close():
            self._writer.drop(write, Refusal.AWAY)
        self._calls.close()
        self._quiet_calls.close()
        self._engine.close()
        self._reader.close()
        self._writer.join()
        self._removals.close()
        self._reviser.close()
        self._upkeep.close()
        self._probe.join()

    # The work.

    def _look(
        self, first: PageKey, left: Iterable[PageKey], deadline: float
    ) -> tuple[int, LookAnswer]:
        """Returns the leading pages that were found by the deadline, and the kind of answer."""
        begun = self._clock()
        end = min(deadline, begun + self._settings.timeout_seconds)
        count, is_whole, answer = 0, True, None
        try:
            with self._namespaces.record(first.namespace) as record:
                epoch, is_hidden = record.epoch, record.is_hidden
            if is_hidden:
                self._counters.look(LookAnswer.SKIPPED)
                return 0, LookAnswer.SKIPPED
            for run, has_missed in self._looks.runs(record, epoch, chain([first], left), end):
                count += run
                is_whole = not has_missed
        except RemoteError as error:
            log.debug("remote_look_failed", why=f"{type(error).__name__}: {error}")
            answer = LookAnswer.PARTIAL if count else LookAnswer.FAILED
        seconds = self._clock() - begun
        if answer is None:
            found = LookAnswer.HIT if is_whole else LookAnswer.PARTIAL
            answer = found if count else LookAnswer.MISS
            self._pace.note_look(seconds)
        self._worth.note(first, answer, seconds)
        self._counters.look(answer, seconds)
        return count, answer

    def _there(self, namespace: bytes, keys: Sequence[PageKey]) -> list[bool]:
        """Returns which pages of a namespace the engine has."""
        absent = [False] * len(keys)
        with self._namespaces.record(namespace) as record:
            epoch, is_hidden = record.epoch, record.is_hidden
        if is_hidden or self.state is not StoreState.OPEN:
            return absent
        asked = self._clock()
        end = asked + self._settings.timeout_seconds
        try:
            found = self._looks.found(record, epoch, keys, end)
        except RemoteError as error:
            log.debug("remote_look_failed", why=f"{type(error).__name__}: {error}")
            return absent
        pairs = list(zip(keys, found, strict=True))
        self._lineage.note_absent((key for key, is_there in pairs if not is_there), asked)
        self._note_found(record, epoch, [key for key, is_there in pairs if is_there])
        return found

    def _note_found(self, record: NamespaceRecord, epoch: int, keys: Sequence[PageKey]) -> None:
        """Remembers consecutive pages of a path that the engine has, and keeps them longer."""
        self._lineage.follow(keys)
        with self._namespaces.mutex:
            if not self._namespaces.is_current(record, epoch):
                return
            live = {shard: record.known[shard].identity for shard in record.live}
        for key in keys:
            revision = live.get(self._page_names.shard(key))
            if revision is not None:
                self._lineage.note_stored([key], revision, self._clock())
        self._refreshes.use(record, keys)

    def _presence(self, key: PageKey, is_stored: bool) -> Presence:  # noqa: FBT001  # of a pair
        if is_stored:
            return Presence.STORED
        return Presence.PENDING if self._queue.is_pending(key) else Presence.ABSENT

    def _refusal(self) -> Refusal | None:
        """Returns the reason for which no page is accepted, if there is one."""
        if not self._settings.writes or self._writer.faults.are_many:
            return Refusal.OFF
        if self._breaker.refuses_pages:
            return Refusal.ENGINE
        return None if self.state is StoreState.OPEN else Refusal.AWAY

    def _read(self, found: FoundPages) -> None:
        """Notes what a read found, before its caller hears of it."""
        self._note_found(found.job.record, found.job.epoch, found.found)
        self._lineage.note_absent([*found.absent, *found.rejected], found.job.begun)
        for name in found.spoiled_names:
            self._upkeep.delete(name)
        if found.rejected:
            self._call(self.lost, found.rejected)

    def _unheard(self, namespace: bytes) -> None:
        """Applies a removal by another host to pages on their way, which are older than it."""
        for write in self._queue.cancel(namespace):
            self._writer.drop(write, Refusal.REVISION)
        self._reviser.add(namespace)

    def _returned(self) -> None:
        """Resumes after the engine was away: removals first, and calls at a low rate."""
        self._look_ramp.restart()
        self._reader.ramp.restart()
        self._pace.restart()
        self._removals.check()
        self._reviser.wake()

    def _tick(self) -> None:
        """Works each second."""
        self._writer.drop_old()
        for namespace in self._corruption.due():
            self.remove_namespace(namespace, lambda _: None)
        if self._breaker.is_open:
            return
        # A connection that broke, and a node that answers again, may have forgotten a removal.
        breaks = self._breaker.failure_count + self._engine.nodes().changes
        if breaks != self._breaks:
            self._breaks = breaks
            self._removals.check()
        self._watch.step()

    @staticmethod
    def _call(function: Callable[[T], None], value: T) -> None:
        try:
            function(value)
        except Exception:
            log.exception("remote_store_callback_failed")


class _Answers:
    """The answers to a removal from several namespaces, which become one. Thread-safe."""

    def __init__(self, done: Done, count: int, call: Callable[[Done, bool], None]) -> None:
        self._done = done
        self._left = count
        self._are_good = True
        self._call = call
        self._mutex = Lock()

    def take(self, removed: bool) -> None:  # noqa: FBT001  # as page stores tell
        """Takes one answer. The last one is passed on."""
        with self._mutex:
            self._left -= 1
            self._are_good &= removed
            is_last = not self._left
        if is_last:
            self._call(self._done, self._are_good)
