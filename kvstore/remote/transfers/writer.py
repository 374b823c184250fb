"""Writes of pages: on threads of their own, under the revision at which they were submitted."""

from collections import deque
from collections.abc import Generator, Iterator, Sequence
from threading import Lock, Thread
from typing import Final, NamedTuple, TypeAlias

import structlog

from kvstore.remote.errors import Reaction, RemoteError
from kvstore.remote.expiry import Expiry
from kvstore.remote.history.remote_namespaces import NamespaceRecord
from kvstore.remote.liveness.breaker import Breaker
from kvstore.remote.liveness.write_pace import WritePace
from kvstore.remote.remote_use import Refusal
from kvstore.remote.secret.names import RemotePage
from kvstore.remote.secret.revisions import Revision
from kvstore.remote.secret.sealing import SEAL_BYTES, ChecksumWrong
from kvstore.remote.transfers.context import TransferContext
from kvstore.remote.transfers.lineage import Lineage
from kvstore.remote.transfers.page_names import Refreshes
from kvstore.remote.transfers.staging import Staging
from kvstore.remote.transfers.write_queue import QueuedWrite, WriteQueue
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

PAGES_A_BATCH: Final = 64
# Small enough that the writers take turns to seal and to send a prompt.
BYTES_A_BATCH: Final = 8 << 20
# Pages that changed in this host's memory, within so many seconds, that stop its writes.
MOST_FAULTS: Final = 3
FAULT_SECONDS: Final = 3600.0
CLOSE_SECONDS: Final = 10.0
_AWAY: Final = frozenset({Reaction.AWAY, Reaction.NODE})


# A page, and None once it is stored, or the reason why it is not.
Outcome: TypeAlias = tuple[QueuedWrite, Refusal | None]


class MemoryFaults:
    """Pages whose bytes had changed in this host's memory. Thread-safe.

    A host with bad memory, or with a worker that writes over pages, must not fill the tier of all.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._mutex = Lock()
        self._times: deque[float] = deque(maxlen=MOST_FAULTS)

    def add(self) -> None:
        """Notes one, and raises the alarm if they are many."""
        with self._mutex:
            self._times.append(self._clock())
        if self.are_many:
            log.error(
                "remote_writes_stopped",
                pages=MOST_FAULTS,
                advice="pages changed in this host's memory: test it, and look for the worker",
            )

    @property
    def are_many(self) -> bool:
        """True while this host must not write."""
        with self._mutex:
            oldest = self._times[0] if len(self._times) == MOST_FAULTS else float("-inf")
            return self._clock() - oldest < FAULT_SECONDS


class _Ready(NamedTuple):
    """A page that is to be sent."""

    write: QueuedWrite
    page: RemotePage
    name: bytes


class Writer:
    """Threads that write the pages of a queue. Thread-safe.

    A page that waited for longer than ``seconds`` is dropped,
    and a batch takes as long at most.
    """

    def __init__(
        self,
        context: TransferContext,
        queue: WriteQueue,
        *,
        breaker: Breaker,
        pace: WritePace,
        lineage: Lineage,
        expiry: Expiry,
        refreshes: Refreshes,
        thread_count: int,
        seconds: float,
    ) -> None:
        self.faults = MemoryFaults(context.clock)
        self._calls, self._gate = context.calls, context.gate
        self._names, self._namespaces = context.names, context.namespaces
        self._sealer, self._counters = context.sealer, context.counters
        self._clock, self._answer = context.clock, context.answer
        self._queue = queue
        self._breaker = breaker
        self._pace = pace
        self._lineage = lineage
        self._expiry = expiry
        self._refreshes = refreshes
        self._seconds = seconds
        self._threads = [
            Thread(target=self._run, name=f"kv-remote-writer-{number}", daemon=True)
            for number in range(thread_count)
        ]

    def start(self) -> None:
        """Starts the threads."""
        for each in self._threads:
            each.start()

    def join(self) -> None:
        """Waits for the end of the threads, after the queue was closed."""
        for each in self._threads:
            each.join(CLOSE_SECONDS)

    def drop_old(self) -> None:
        """Drops the pages that waited for too long."""
        for each in self._queue.drop_older(self._clock() - self._seconds):
            self.drop(each, Refusal.OLD)

    def drop(self, write: QueuedWrite, reason: Refusal) -> None:
        """Answers that a page is not written, which left the queue."""
        self._counters.refuse(reason)
        self._namespaces.release(write.record)
        self._answer(write.done, False)  # noqa: FBT003  # as page stores tell

    def _run(self) -> None:
        staging = Staging()
        while batch := self._queue.take(PAGES_A_BATCH, BYTES_A_BATCH):
            began = self._clock()
            left = dict.fromkeys(batch)
            reason = Refusal.AWAY
            try:
                for each, outcome in self._write(batch, staging):
                    del left[each]
                    self._end(each, outcome)
            except RemoteError as error:
                staging.drop()
                if error.reaction not in _AWAY:
                    reason = Refusal.ENGINE
                log.debug("remote_write_failed", why=f"{type(error).__name__}: {error}")
            except Exception:
                staging.drop()
                log.exception("remote_write_failed")
            for each in left:
                self._end(each, reason)
            if not self._breaker.rest(self._pace.rest(self._clock() - began)):
                return

    def _end(self, write: QueuedWrite, outcome: Refusal | None) -> None:
        """Answers a page that is stored, or is not for a reason."""
        self._queue.finish(write)
        if outcome is not None:
            self.drop(write, outcome)
            return
        self._namespaces.release(write.record)
        self._answer(write.done, True)  # noqa: FBT003  # as page stores tell

    def _write(self, batch: Sequence[QueuedWrite], staging: Staging) -> Iterator[Outcome]:
        """Yields each page of a namespace with None once it is stored, or the reason why not."""
        record, epoch = batch[0].record, max(each.epoch for each in batch)
        oldest = self._clock() - self._seconds
        deadline = self._clock() + self._seconds
        young = [each for each in batch if each.submitted >= oldest]
        yield from ((each, Refusal.OLD) for each in batch if each.submitted < oldest)
        if not young:
            return
        shards = self._names.shards(each.page.key for each in young)
        revisions = self._gate.current(record, epoch, shards, deadline)
        ready = []
        for each in young:
            revision = None if revisions is None else revisions.get(each.shard)
            # Pages are born under the revision at which they were submitted.
            is_born = each.epoch == epoch and each.revision in {None, revision}
            if revisions is not None and revision is None:
                yield each, Refusal.AWAY
            elif revision is None or not is_born:
                yield each, Refusal.REVISION
            else:
                ready.append(self._ready(each, revision))
        absent = yield from self._without_stored(record, ready, deadline)
        sealed = yield from self._sealed(absent, staging)
        yield from self._send(record, epoch, sealed, deadline)
        self._refreshes.use_shards(record, shards)

    def _ready(self, write: QueuedWrite, revision: Revision) -> _Ready:
        page = self._names.page(write.page.key, revision, write.size)
        return _Ready(write, page, self._names.name(page))

    def _without_stored(
        self, record: NamespaceRecord, ready: Sequence[_Ready], deadline: float
    ) -> Generator[Outcome, None, list[_Ready]]:
        """Yields the pages that another host wrote; returns the others."""
        exist = self._calls.exists_many([each.name for each in ready], deadline) if ready else []
        absent: list[_Ready] = []
        for each, is_there in zip(ready, exist, strict=True):
            if is_there and each.name not in self._names.bad:
                key = each.write.page.key
                self._lineage.note_stored([key], each.page.revision, self._clock())
                self._refreshes.use(record, [key])
                yield each.write, None
            else:
                absent.append(each)
        return absent

    def _sealed(
        self, ready: Sequence[_Ready], staging: Staging
    ) -> Generator[Outcome, None, list[tuple[_Ready, memoryview]]]:
        """Seals copies of pages. Yields those that had changed; returns the others."""
        values = staging.buffers([each.write.size + SEAL_BYTES for each in ready])
        sealed: list[tuple[_Ready, memoryview]] = []
        for each, value in zip(ready, values, strict=True):
            try:
                self._sealer.seal(each.page, each.write.content, each.write.checksum, value)
            except ChecksumWrong:
                self.faults.add()
                yield each.write, Refusal.CHANGED
            else:
                sealed.append((each, value))
        return sealed

    def _send(
        self,
        record: NamespaceRecord,
        epoch: int,
        sealed: Sequence[tuple[_Ready, memoryview]],
        deadline: float,
    ) -> Iterator[Outcome]:
        """Writes values, after their ancestors' lives were extended."""
        if not sealed:
            return
        keys = [each.write.page.key for each, _ in sealed]
        self._refreshes.before_writes(record, keys, deadline)
        lives = [self._expiry.life_ms(self._lineage.depth(key)) for key in keys]
        names = [each.name for each, _ in sealed]
        outcomes = self._calls.put_many(names, [value for _, value in sealed], lives, deadline)
        for (each, _), error in zip(sealed, outcomes, strict=True):
            if error is not None:
                is_away = error.reaction in _AWAY
                yield each.write, Refusal.AWAY if is_away else Refusal.ENGINE
            elif not self._is_current(record, epoch):
                yield each.write, Refusal.REVISION
            else:
                key = each.write.page.key
                self._names.bad.discard(each.name)
                self._lineage.note_stored([key], each.page.revision, self._clock())
                self._lineage.note_written(key, self._expiry.bucket)
                self._counters.write(each.write.size)
                yield each.write, None

    def _is_current(self, record: NamespaceRecord, epoch: int) -> bool:
        with self._namespaces.mutex:
            return self._namespaces.is_current(record, epoch)
