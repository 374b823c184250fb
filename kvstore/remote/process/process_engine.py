"""The remote engine that runs another one in helpers: for engines that hang or crash."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from time import monotonic
from typing import TypeVar, cast

from kvstore.remote.buffers import copy_bytes
from kvstore.remote.connection_pool import ConnectionPool
from kvstore.remote.engine import EngineCapabilities, EngineNodes, ReadResult, require_lives
from kvstore.remote.errors import DeadlinePassed, RemoteError, ReplyMalformed
from kvstore.remote.finding import EngineFinding, FindingKind
from kvstore.remote.process.helper_process import HelperCommand, HelperProcess, HelperStarts
from kvstore.remote.process.messages import error_of

T = TypeVar("T")
# As many bytes as one call of a store moves at a time.
MEMORY_BYTES = 64 << 20


class ProcessEngine:
    """A :class:`~kvstore.remote.engine.RemoteEngine` over helpers that run one. Thread-safe.

    A call that the helper does not answer in time kills the helper, and another one starts. So
    each call keeps its deadline, and an engine that crashes ends nothing but its helper. Values
    go through memory of the helper, which nobody else uses.

    ``helpers`` calls run at a time. ``capabilities`` are those of the engine.
    """

    def __init__(
        self, command: HelperCommand, capabilities: EngineCapabilities, *, helpers: int
    ) -> None:
        self.capabilities = replace(
            capabilities,
            most_bytes=min(capabilities.most_bytes, command.memory_bytes),
            registered_memory=False,
            keeps_deadlines=True,
        )
        self._memory_bytes = command.memory_bytes
        self._starts = HelperStarts(command)
        self._pool = ConnectionPool[HelperProcess](
            self._starts.start, size=helpers, connect_seconds=command.start_seconds
        )

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Asks the helper."""
        found = self._call(deadline, "exists_many", _texts(names))
        if not isinstance(found, list) or [*map(type, found)] != [bool] * len(names):
            raise ReplyMalformed(f"the helper answered {str(found)[:40]} for {len(names)} names")
        return found

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Copies values from the helper's memory as they come."""
        with self._helper(deadline) as helper:
            for part, places in self._parts([each.nbytes for each in into]):
                with closing(helper.results("get_many", _texts(names[part]), places)) as results:
                    for buffer, place in zip(into[part], places, strict=True):
                        result = _next(results, ReadResult)
                        if result is ReadResult.READ:
                            copy_bytes(buffer, _view(helper, place))
                        yield result
                    _end(results)

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Copies as many values into the helper's memory as it has room for, and then more."""
        require_lives(lives_ms)
        with self._helper(deadline) as helper:
            start = monotonic()
            for part, places in self._parts([each.nbytes for each in values]):
                for value, place in zip(values[part], places, strict=True):
                    copy_bytes(_view(helper, place), value)
                # Later parts must not outlive earlier ones by the time that those took.
                spent = int((monotonic() - start) * 1000)
                lives = [max(life - spent, 1) for life in lives_ms[part]]
                told = helper.results("put_many", _texts(names[part]), places, lives)
                with closing(told) as results:
                    for _ in places:
                        yield _next(results, _write_result)
                    _end(results)

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Asks the helper."""
        self._call(deadline, "refresh_many", _texts(names), list(lives_ms))

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Asks the helper."""
        found = self._call(deadline, "control", name.decode())
        return None if found is None else bytes.fromhex(str(found))

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Asks the helper."""
        return bool(
            self._call(deadline, "set_control", name.decode(), value.hex(), life_ms, only_if_absent)
        )

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Asks the helper."""
        self._call(deadline, "delete_many", _texts(names))

    def time_ms(self, deadline: float) -> int:
        """Asks the helper."""
        return int(str(self._call(deadline, "time_ms")))

    def nodes(self) -> EngineNodes:
        """Has one node."""
        return EngineNodes()

    def ping(self, deadline: float) -> None:
        """Waits for a helper to start if none runs."""
        self._call(deadline, "ping", insist=True)

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Asks the helper."""
        found = cast("list[list[str]]", self._call(deadline, "findings"))
        return [EngineFinding(FindingKind(kind), *texts) for kind, *texts in found]

    def close(self) -> None:
        """Kills the helpers, and waits a second at most for their ends."""
        self._starts.close()
        self._pool.close()

    def _call(self, deadline: float, call: str, *arguments: object, insist: bool = False) -> object:
        with self._helper(deadline, insist=insist) as helper:
            return helper.call(call, *arguments)

    @contextmanager
    def _helper(self, deadline: float, *, insist: bool = False) -> Iterator[HelperProcess]:
        helper = self._pool.take(deadline, insist=insist)
        try:
            # A helper that was asked now would be killed now.
            if monotonic() >= deadline:
                raise DeadlinePassed("the deadline passed before the call")
            yield helper
        finally:
            self._pool.give(helper)

    def _parts(self, sizes: Sequence[int]) -> Iterator[tuple[slice, list[tuple[int, int]]]]:
        """Yields runs of values that fit into a helper's memory, and their places there."""
        start, end, places = 0, 0, list[tuple[int, int]]()
        for index, size in enumerate(sizes):
            if size > self._memory_bytes:
                raise ValueError(f"a value of {size} bytes: the most are {self._memory_bytes}")
            if end + size > self._memory_bytes:
                yield slice(start, index), places
                start, end, places = index, 0, []
            places.append((end, size))
            end += size
        if places:
            yield slice(start, len(sizes)), places


def _next(results: Iterator[object], parsed: Callable[[object], T]) -> T:
    try:
        return parsed(next(results))
    except StopIteration:
        raise ReplyMalformed("the helper answered too few results") from None
    except (ValueError, TypeError, IndexError) as error:
        raise ReplyMalformed(f"the helper answered no result: {error}") from error


def _end(results: Iterator[object]) -> None:
    if next(results, _end) is not _end:
        raise ReplyMalformed("the helper answered too many results")


def _write_result(told: object) -> RemoteError | None:
    return None if told is None else error_of(cast("list[object]", told))


def _view(helper: HelperProcess, place: tuple[int, int]) -> memoryview:
    start, size = place
    return helper.memory[start : start + size]


def _texts(names: Sequence[bytes]) -> list[str]:
    return [name.decode("ascii") for name in names]
