"""A remote engine in this process that fails in every way that a test asks for."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from threading import Condition
from time import monotonic

from kvstore.remote.engine import EngineCapabilities, EngineNodes, ReadResult, require_lives
from kvstore.remote.errors import DeadlinePassed, EngineClosed, EngineFull, RemoteError
from kvstore.remote.finding import EngineFinding


@dataclass
class EngineFaults:
    """The faults of an engine. By default it has none. A test changes them at any time.

    ``error`` is raised by every call. ``is_hung`` makes each call wait for its deadline, or for
    the end of the fault, if ``hangs`` says so of the call's name. ``is_late`` makes reads ignore
    their deadlines: they wait for the end of ``is_hung`` and then write to their buffers.
    ``loses`` and ``corrupts`` choose values by name. A lost value is reported as written, a corrupt
    one is read with a flipped bit.
    """

    error: Exception | None = None
    is_hung: bool = False
    hangs: Callable[[str], bool] = field(default=lambda _call: True)
    is_late: bool = False
    loses: Callable[[bytes], bool] = field(default=lambda _name: False)
    corrupts: Callable[[bytes], bool] = field(default=lambda _name: False)
    most_values: int | None = None


class MemoryEngine:
    """A :class:`~kvstore.remote.engine.RemoteEngine` on a dictionary. Thread-safe.

    Several engines can share ``values``, as hosts share a server. ``calls`` has the name of each
    call that began. The clock is real time plus ``ahead_ms``.
    """

    def __init__(self, values: dict[bytes, tuple[bytes, int]] | None = None) -> None:
        self.values = {} if values is None else values
        self.faults = EngineFaults()
        self.calls: list[str] = []
        self.ahead_ms = 0
        self._changed = Condition()
        self._is_closed = False

    @property
    def capabilities(self) -> EngineCapabilities:
        """The abilities of a server, except that a late one keeps no deadline."""
        return EngineCapabilities(
            exists_in_one_trip=True,
            expires=True,
            revisions=True,
            lists=True,
            most_bytes=1 << 30,
            best_bytes=1,
            registered_memory=False,
            keeps_deadlines=not self.faults.is_late,
        )

    def set(self, **faults: object) -> None:
        """Changes some faults. Calls that wait take notice at once."""
        with self._changed:
            for name, value in faults.items():
                assert hasattr(self.faults, name), name
                setattr(self.faults, name, value)
            self._changed.notify_all()

    def evict(self, name: bytes) -> None:
        """Forgets a value without telling anybody."""
        with self._changed:
            self.values.pop(name, None)

    def exists_many(self, names: Sequence[bytes], deadline: float) -> list[bool]:
        """Returns which values have not expired."""
        self._begin("exists_many", deadline)
        with self._changed:
            return [self._value(name) is not None for name in names]

    def get_many(
        self, names: Sequence[bytes], into: Sequence[memoryview], deadline: float
    ) -> Iterator[ReadResult]:
        """Copies values."""
        for name, buffer in zip(names, into, strict=True):
            self._begin("get_many", deadline, keeps_deadline=not self.faults.is_late)
            with self._changed:
                value = self._value(name)
            if value is None:
                yield ReadResult.MISSING
            elif len(value) != buffer.nbytes:
                yield ReadResult.WRONG_SIZE
            else:
                buffer[:] = value
                if value and self.faults.corrupts(name):
                    buffer[len(value) // 2] ^= 1
                yield ReadResult.READ

    def put_many(
        self,
        names: Sequence[bytes],
        values: Sequence[memoryview],
        lives_ms: Sequence[int],
        deadline: float,
    ) -> Iterator[RemoteError | None]:
        """Keeps copies."""
        require_lives(lives_ms)
        now = self._now_ms()
        for name, value, life in zip(names, values, lives_ms, strict=True):
            self._begin("put_many", deadline)
            most = self.faults.most_values
            with self._changed:
                is_new = name not in self.values
                is_full = most is not None and is_new and len(self.values) >= most
                if not is_full and not self.faults.loses(name):
                    self.values[name] = bytes(value), now + life
            yield EngineFull("the engine is full") if is_full else None

    def refresh_many(
        self, names: Sequence[bytes], lives_ms: Sequence[int], deadline: float
    ) -> None:
        """Extends lives."""
        self._begin("refresh_many", deadline)
        now = self._now_ms()
        with self._changed:
            for name, life in zip(names, lives_ms, strict=True):
                value, expiry = self.values.get(name, (b"", 0))
                if now < expiry < now + life:
                    self.values[name] = value, now + life

    def control(self, name: bytes, deadline: float) -> bytes | None:
        """Returns a value, which no fault but an eviction takes away."""
        self._begin("control", deadline)
        with self._changed:
            return self._value(name)

    def set_control(
        self, name: bytes, value: bytes, life_ms: int, deadline: float, *, only_if_absent: bool
    ) -> bool:
        """Keeps a value."""
        self._begin("set_control", deadline)
        with self._changed:
            if only_if_absent and self._value(name) is not None:
                return False
            self.values[name] = value, self._now_ms() + life_ms
            return True

    def delete_many(self, names: Sequence[bytes], deadline: float) -> None:
        """Forgets values."""
        self._begin("delete_many", deadline)
        for name in names:
            self.evict(name)

    def time_ms(self, deadline: float) -> int:
        """Returns the engine's clock."""
        self._begin("time_ms", deadline)
        return self._now_ms()

    def nodes(self) -> EngineNodes:
        """Has one node."""
        return EngineNodes()

    def ping(self, deadline: float) -> None:
        """Returns unless a fault keeps the engine from it."""
        self._begin("ping", deadline)

    def findings(self, deadline: float) -> list[EngineFinding]:
        """Has no setting that anybody could change."""
        self._begin("findings", deadline)
        return []

    def close(self) -> None:
        """Ends the calls that wait."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _now_ms(self) -> int:
        return int(time.time() * 1000) + self.ahead_ms

    def _value(self, name: bytes) -> bytes | None:
        value, expiry = self.values.get(name, (None, 0))
        return value if expiry > self._now_ms() else None

    def _hangs(self, call: str) -> bool:
        return self.faults.is_hung and self.faults.hangs(call)

    def _begin(self, call: str, deadline: float, *, keeps_deadline: bool = True) -> None:
        with self._changed:
            self.calls.append(call)
            end = deadline if keeps_deadline else monotonic() + 60.0
            self._changed.wait_for(
                lambda: self._is_closed or not self._hangs(call), max(end - monotonic(), 0)
            )
            if self._is_closed:
                raise EngineClosed("the engine was closed")
            if self.faults.error is not None:
                raise self.faults.error
            if self._hangs(call) or (keeps_deadline and monotonic() >= deadline):
                raise DeadlinePassed("the engine did not answer in time")
