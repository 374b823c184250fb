"""Calls of a remote engine on the store's clock, each of which ends at its deadline.

An engine that keeps no deadlines is called on a thread of its own for each call. At the deadline
the caller goes on without it. The call keeps its memory, which nobody else uses, until it returns.
"""

from collections.abc import Callable, Iterator, Sequence
from enum import Enum, auto
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from time import monotonic
from typing import Final, TypeVar

import structlog

from kvstore.remote.engine import ReadResult, RemoteEngine
from kvstore.remote.errors import (
    DeadlinePassed,
    EngineClosed,
    EngineFaulty,
    EngineUnreachable,
    Reaction,
    RemoteError,
)
from kvstore.remote.liveness.breaker import Breaker
from kvstore.service.clock import Clock

log: structlog.typing.FilteringBoundLogger = structlog.get_logger()

T = TypeVar("T")

# Calls beyond their deadlines, each with a thread and the memory of one read.
MOST_STUCK: Final = 8
# A deadline that passes says something of the engine if the call had this share of its usual time.
FAIR_SHARE: Final = 0.5


class EngineAway(EngineUnreachable):
    """The engine was not called, since the breaker is open."""


class _Write(Enum):
    """The kind of a call that writes."""

    PAGE = auto()
    OTHER = auto()


class _Call:
    """A call on a thread of its own, and its results as they come."""

    def __init__(
        self, items: Callable[[], Iterator[object]], ended: Callable[["_Call"], None]
    ) -> None:
        self.results: SimpleQueue[tuple[object, BaseException | None]] = SimpleQueue()
        self.is_abandoned = self.has_returned = False
        self._items = items
        self._ended = ended
        Thread(target=self._run, name="kv-remote-call", daemon=True).start()

    def _run(self) -> None:
        end: BaseException = StopIteration()
        try:
            for each in self._items():
                self.results.put((each, None))
                if self.is_abandoned:
                    break
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            end = error
        self.results.put((None, end))
        self._ended(self)


class EngineCalls:
    """The engine as the other parts call it. Deadlines are times of ``clock``. Thread-safe.

    Each error is a ``RemoteError``. Calls report their outcomes to the ``breaker``, and are refused
    while it is open, unless ``reports`` is False. A call whose deadline had passed before it began,
    or that had little time, says nothing of the engine. So does a write that an operator forbids.
    """

    def __init__(
        self,
        engine: RemoteEngine,
        breaker: Breaker,
        clock: Clock,
        *,
        usual_seconds: float,
        reports: bool = True,
    ) -> None:
        self._engine = engine
        self._breaker = breaker
        self._clock = clock
        self._fair_seconds = FAIR_SHARE * usual_seconds
        self._reports = reports
        self._mutex = Lock()
        self._calls: set[_Call] = set()
        self._stuck: set[_Call] = set()
        self._is_closed = False
        # The log has the traceback of one such error. The breaker logs the later ones.
        self._was_told = False

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Returns for each name whether the engine has a value."""
        return self._call(partial(self._engine.exists_many, names), deadline)

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Yields the fate of each value. After an error the buffers may still change."""
        return self._each(partial(self._engine.get_many, names, into), deadline)

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Yields None for each value that was written, or its error."""

        def put(end: float) -> Iterator[RemoteError | None]:
            for error in self._engine.put_many(names, values, lives_ms, end):
                if self._reports and error is not None and error.reaction is Reaction.OPERATOR:
                    self._breaker.refuse(error, of_page=True)
                yield error

        return self._each(put, deadline, wrote=_Write.PAGE)

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Extends the lives of values."""
        refresh = partial(self._engine.refresh_many, names, lives_ms)
        self._call(refresh, deadline, wrote=_Write.OTHER)

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Returns a control value."""
        return self._call(partial(self._engine.control, name), deadline)

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Writes a control value."""

        def write(end: float) -> bool:
            return self._engine.set_control(
                name, value, life_ms, end, only_if_absent=only_if_absent
            )

        return self._call(write, deadline, wrote=_Write.OTHER)

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Deletes values."""
        self._call(partial(self._engine.delete_many, names), deadline, wrote=_Write.OTHER)

    def time_ms(self, deadline: float) -> int:
        """Returns the engine's clock."""
        return self._call(self._engine.time_ms, deadline)

    @property
    def stuck_count(self) -> int:
        """Calls that have not returned, although their deadlines have passed."""
        with self._mutex:
            return len(self._stuck)

    def close(self) -> None:
        """Ends the waits of all callers."""
        with self._mutex:
            self._is_closed = True
            calls = list(self._calls)
        for each in calls:
            each.results.put((None, EngineClosed("the engine was closed")))

    def _call(
        self, call: Callable[[float], T], deadline: float, *, wrote: _Write | None = None
    ) -> T:
        def once(end: float) -> Iterator[T]:
            yield call(end)

        [result] = self._each(once, deadline, wrote=wrote)
        return result

    def _each(
        self,
        items: Callable[[float], Iterator[T]],
        deadline: float,
        *,
        wrote: _Write | None = None,
    ) -> Iterator[T]:
        began = self._clock()
        seconds = deadline - began
        if self._reports and self._breaker.is_open:
            raise EngineAway(f"the engine is away: {self._breaker.why}")
        if seconds <= 0:
            raise DeadlinePassed("no time was left for the call")
        end = monotonic() + seconds
        keeps = self._engine.capabilities.keeps_deadlines
        count = 0
        try:
            for each in items(end) if keeps else self._apart(items, end):
                count += 1
                yield each
        except DeadlinePassed as error:
            # An engine that is slow is not dead.
            if not count and seconds >= self._fair_seconds:
                self._fail(error, began)
            raise
        except RemoteError as error:
            self._fail(error, began, wrote)
            raise
        except Exception as error:
            # The callers are requests and threads for which an engine that fails is usual.
            if not self._was_told:
                self._was_told = True
                log.exception("remote_engine_faulty")
            faulty = EngineFaulty(f"{type(error).__name__}: {error}")
            self._fail(faulty, began)
            raise faulty from error
        if self._reports:
            self._breaker.succeed()

    def _fail(self, error: RemoteError, began: float, wrote: _Write | None = None) -> None:
        if not self._reports:
            return
        if wrote is not None and error.reaction is Reaction.OPERATOR:
            self._breaker.refuse(error, of_page=wrote is _Write.PAGE)
        else:
            self._breaker.fail(error, began)

    def _apart(self, items: Callable[[float], Iterator[T]], end: float) -> Iterator[T]:
        """Yields the results of a call on a thread of its own, until its deadline."""
        with self._mutex:
            if self._is_closed:
                raise EngineClosed("the engine was closed")
            if len(self._stuck) >= MOST_STUCK:
                raise DeadlinePassed(f"{MOST_STUCK} calls have not returned")
        call = _Call(partial(items, end), self._ended)
        with self._mutex:
            self._calls.add(call)
        try:
            while True:
                try:
                    result, error = call.results.get(timeout=max(end - monotonic(), 0))
                except Empty:
                    self._abandon(call)
                    raise DeadlinePassed("the engine did not return in time") from None
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    raise error
                yield result  # type: ignore[misc]  # as the items yield
        finally:
            call.is_abandoned = True
            with self._mutex:
                self._calls.discard(call)

    def _abandon(self, call: _Call) -> None:
        with self._mutex:
            if not call.has_returned:
                self._stuck.add(call)

    def _ended(self, call: _Call) -> None:
        with self._mutex:
            call.has_returned = True
            self._stuck.discard(call)
