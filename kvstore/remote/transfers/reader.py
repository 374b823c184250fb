"""Reads of pages: on threads of their own, into private memory, opened before anyone sees them."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from threading import Condition, Thread
from typing import Final, NamedTuple

import structlog

from kvstore.remote.engine import ReadResult
from kvstore.remote.errors import RemoteError
from kvstore.remote.history.remote_namespaces import NamespaceRecord
from kvstore.remote.liveness.ramp import Ramp
from kvstore.remote.remote_use import Rejection
from kvstore.remote.secret.names import RemotePage
from kvstore.remote.secret.revisions import Revision
from kvstore.remote.secret.sealing import (
    SEAL_BYTES,
    ChecksumWrong,
    ForeignSecret,
    PageRejected,
    SealBroken,
    UnknownFormat,
)
from kvstore.remote.transfers.context import TransferContext
from kvstore.remote.transfers.staging import Staging
from kvstore.storage.page_store import Content, PageKey, PageRead, ReadAnswer, size_of

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

# Bytes of one call of the engine, unless fewer pages would come. Each call uses the same memory,
# which is then in the processor's cache: calls of 16 MiB took 0.07 s more of it for a gigabyte.
CALL_BYTES: Final = 2 << 20
# An engine sends a page of a call while the one before it is opened.
CALL_PAGES: Final = 2
# The part of a read's time that is left for the second look at the revisions.
RESERVE: Final = 0.1
CLOSE_SECONDS: Final = 10.0
REASONS: Final[Mapping[type[PageRejected], Rejection]] = {
    UnknownFormat: Rejection.FORMAT,
    ForeignSecret: Rejection.SECRET,
    SealBroken: Rejection.SEAL,
    ChecksumWrong: Rejection.CHECKSUM,
}


class ReadJob:
    """A read that was asked for; ``epoch`` is that of its namespace at that time."""

    def __init__(
        self,
        wanted: Sequence[PageRead],
        done: Callable[[ReadAnswer], None],
        *,
        record: NamespaceRecord,
        epoch: int,
        begun: float,
        deadline: float,
    ) -> None:
        self.wanted = wanted
        self.done = done
        self.record = record
        self.epoch = epoch
        self.begun = begun
        self.deadline = deadline
        self.size = sum(size_of(each.into) for each in wanted)

    @property
    def keys(self) -> list[PageKey]:
        """The keys of the wanted pages."""
        return [each.key for each in self.wanted]


class _Wanted(NamedTuple):
    """A page of a call: its number in the job, what is asked for, its name, and its place."""

    number: int
    page: RemotePage
    name: bytes
    into: Content


class FoundPages(NamedTuple):
    """A call-back's view of a finished read: the pages found, missed and rejected."""

    job: ReadJob
    found: Sequence[PageKey]
    absent: Sequence[PageKey]
    rejected: Sequence[PageKey]
    spoiled_names: Sequence[bytes]


class Reader:
    """Threads that read pages. Thread-safe.

    ``finished`` is called before it with what was found.
    At most ``most_bytes`` are read at a time.
    """

    def __init__(
        self,
        context: TransferContext,
        *,
        thread_count: int,
        most_bytes: int,
        finished: Callable[[FoundPages], None],
    ) -> None:
        self.ramp = Ramp(thread_count)
        self.reading_bytes = 0
        self._calls, self._gate = context.calls, context.gate
        self._names, self._namespaces = context.names, context.namespaces
        self._sealer, self._counters = context.sealer, context.counters
        self._clock, self._answer = context.clock, context.answer
        self._most_bytes = most_bytes
        self._finished = finished
        self._changed = Condition()
        self._jobs: deque[ReadJob] = deque()
        self._is_closed = False
        self._threads = [
            Thread(target=self._run, name=f"kv-remote-reader-{number}", daemon=True)
            for number in range(thread_count)
        ]
        self._threads.append(Thread(target=self._end_late, name="kv-remote-late", daemon=True))

    @property
    def room(self) -> int:
        """Bytes that may be read in addition."""
        return self._most_bytes - self.reading_bytes

    def start(self) -> None:
        """Starts the threads."""
        for each in self._threads:
            each.start()

    def put(self, job: ReadJob) -> bool:
        """Begins a read. Returns False if it is larger than the room, or the reader is closed."""
        with self._changed:
            if self._is_closed or job.size > self.room:
                return False
            self.reading_bytes += job.size
            self._jobs.append(job)
            self._changed.notify_all()
        return True

    def close(self) -> None:
        """Answers all reads, and ends the threads."""
        with self._changed:
            self._is_closed = True
            jobs = list(self._jobs)
            self._jobs.clear()
            self._changed.notify_all()
        for each in jobs:
            self._end(each, [None] * len(each.wanted))
        for thread in self._threads:
            thread.join(CLOSE_SECONDS)

    def _run(self) -> None:
        staging = Staging()
        while (job := self._take()) is not None:
            checksums: list[int | None] = [None] * len(job.wanted)
            has_place = self.ramp.wait(max(job.deadline - self._clock(), 0))
            try:
                if has_place:
                    checksums = self._read(job, staging)
            except RemoteError as error:
                log.debug("remote_read_failed", why=f"{type(error).__name__}: {error}")
            except Exception:
                log.exception("remote_read_failed")
            if has_place:
                self.ramp.give(succeeded=any(each is not None for each in checksums))
            self._end(job, checksums)

    def _take(self) -> ReadJob | None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or self._jobs)
            return self._jobs.popleft() if self._jobs else None

    def _end_late(self) -> None:
        """Answers the reads whose deadlines pass before a thread has taken them."""
        while True:
            with self._changed:
                if self._is_closed:
                    return
                now = self._clock()
                late = [each for each in self._jobs if each.deadline <= now]
                for each in late:
                    self._jobs.remove(each)
                if not late:
                    due = min((each.deadline for each in self._jobs), default=None)
                    self._changed.wait(None if due is None else due - now)
            for each in late:
                self._end(each, [None] * len(each.wanted))

    def _end(self, job: ReadJob, checksums: Sequence[int | None]) -> None:
        pairs = zip(job.wanted, checksums, strict=True)
        size = sum(size_of(each.into) for each, checksum in pairs if checksum is not None)
        seconds = self._clock() - job.begun
        self._namespaces.release(job.record)
        with self._changed:
            self.reading_bytes -= job.size
        self._counters.read(sum(each is not None for each in checksums), size, seconds)
        self._answer(job.done, ReadAnswer(tuple(checksums), size, seconds))

    def _read(self, job: ReadJob, staging: Staging) -> list[int | None]:
        """Returns the checksum of each page that was read whole, in memory of the caller.

        Reads the revisions again after the last page. Pages of a shard with another one by then do
        not count, and none does if this host has to hear of a removal.
        """
        shards = self._names.shards(job.keys)
        used = self._revisions(job, shards)
        checksums: list[int | None] = [None] * len(job.wanted)
        if used is None:
            return checksums
        absent: list[PageKey] = []
        rejected: list[PageKey] = []
        spoiled: list[bytes] = []
        deadline = job.deadline - RESERVE * max(job.deadline - self._clock(), 0)
        try:
            for each, outcome in self._pages(job, used, staging, deadline):
                match outcome:
                    case int():
                        checksums[each.number] = outcome
                    case PageRejected():
                        rejected.append(job.wanted[each.number].key)
                        self._reject(each, outcome, spoiled)
                    case _:
                        absent.append(job.wanted[each.number].key)
        except RemoteError as error:
            # The pages before it came whole.
            log.debug("remote_read_ended", why=f"{type(error).__name__}: {error}")
        if any(each is not None for each in checksums):
            shards = list(used)
            again = self._gate.current(job.record, job.epoch, shards, job.deadline)
            for number, key in enumerate(job.keys):
                shard = self._names.shard(key)
                if again is None or again.get(shard) != used.get(shard):
                    checksums[number] = None
        keys = [key for key, each in zip(job.keys, checksums, strict=True) if each is not None]
        self._finished(FoundPages(job, keys, absent, rejected, spoiled))
        return checksums

    def _revisions(self, job: ReadJob, shards: Sequence[int]) -> Mapping[int, Revision] | None:
        """Returns the known revisions, and reads those that were not seen since the start."""
        with self._namespaces.mutex:
            if not self._namespaces.is_current(job.record, job.epoch):
                return None
            live = job.record.live
            known = {each: job.record.known[each] for each in shards if each in live}
        left = [each for each in shards if each not in known]
        if not left:
            return known
        read = self._gate.current(job.record, job.epoch, left, job.deadline)
        return None if read is None else {**known, **read}

    def _pages(
        self, job: ReadJob, used: Mapping[int, Revision], staging: Staging, deadline: float
    ) -> Iterator[tuple[_Wanted, int | PageRejected | None]]:
        """Yields each page with its checksum, its rejection, or None if it is absent."""
        for call in _calls_of(list(self._asked(job, used))):
            buffers = staging.buffers([each.page.page_bytes + SEAL_BYTES for each in call])
            results = self._calls.get_many([each.name for each in call], buffers, deadline)
            try:
                for each, buffer, result in zip(call, buffers, results, strict=True):
                    yield each, self._opened(each, buffer, result)
            except RemoteError:
                staging.drop()
                raise

    def _asked(self, job: ReadJob, used: Mapping[int, Revision]) -> Iterator[_Wanted]:
        for number, (key, into) in enumerate(job.wanted):
            revision = used.get(self._names.shard(key))
            if revision is not None:
                page = self._names.page(key, revision, size_of(into))
                yield _Wanted(number, page, self._names.name(page), into)

    def _opened(
        self, wanted: _Wanted, buffer: memoryview, result: ReadResult
    ) -> int | PageRejected | None:
        if result is ReadResult.WRONG_SIZE:
            return UnknownFormat("the value has another length")
        if result is not ReadResult.READ:
            return None
        try:
            return self._sealer.open(wanted.page, buffer, wanted.into)
        except PageRejected as rejection:
            return rejection

    def _reject(self, wanted: _Wanted, rejection: PageRejected, spoiled: list[bytes]) -> None:
        self._names.bad.add(wanted.name)
        if rejection.is_spoiled:
            spoiled.append(wanted.name)
        self._counters.reject(REASONS[type(rejection)], is_corrupt=rejection.is_spoiled)


def _calls_of(wanted: Sequence[_Wanted]) -> Iterator[list[_Wanted]]:
    """Yields the pages of each call of the engine, in order: of ``CALL_BYTES``, or a few pages."""
    call: list[_Wanted] = []
    size = 0
    for each in wanted:
        if len(call) >= CALL_PAGES and size + each.page.page_bytes > CALL_BYTES:
            yield call
            call, size = [], 0
        call.append(each)
        size += each.page.page_bytes
    if call:
        yield call
