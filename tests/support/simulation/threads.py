"""The names that the client uses of ``threading`` and ``queue``, on simulated threads.

Each does what the one of its name does, as far as the client uses it. Outside of
any simulated thread nothing may wait.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from queue import Empty
from typing import Any, Generic, Self, TypeVar

from simulation import current
from simulation.kernel import SimThread, Violation

T = TypeVar("T")


class Lock:
    """A mutex; ``reentrant`` for the thread that has it."""

    reentrant = False

    def __init__(self) -> None:
        self._owner: object = None
        self._depth = 0
        self._waiting: deque[SimThread] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:  # noqa: FBT001, FBT002 - as in threading
        """Takes it."""
        kernel = current.kernel()
        me = kernel.running or kernel
        if self.reentrant and self._owner is me and self._depth:
            self._depth += 1
            return True
        kernel.preempt()
        while self._depth:
            if not blocking:
                return False
            if kernel.running is None:
                raise Violation("a finalizer or the store waits for a mutex of the client")
            self._waiting.append(kernel.running)
            if not kernel.park(None if timeout < 0 else timeout):
                return False
        self._owner, self._depth = me, 1
        return True

    def release(self) -> None:
        """Releases it once."""
        self._depth -= 1
        if self._depth == 0:
            self._owner = None
            self._wake_one()

    def locked(self) -> bool:
        """Returns whether somebody has it."""
        return self._depth > 0

    def let_go(self) -> int:
        """Releases it completely, and returns how often it was acquired."""
        depth, self._depth, self._owner = self._depth, 0, None
        self._wake_one()
        return depth

    def take_back(self, depth: int) -> None:
        """Takes it again as deep as it was."""
        self.acquire()
        self._depth = depth

    def _wake_one(self) -> None:
        kernel = current.kernel()
        while self._waiting:
            thread = self._waiting.popleft()
            if not thread.done:
                kernel.wake(thread)
                return

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class RLock(Lock):
    """A mutex that its owner may take again."""

    reentrant = True


class Condition:
    """A condition on a mutex of its own, or on a given one."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._mutex = RLock() if lock is None else lock
        self._waiting: list[SimThread] = []
        self.acquire = self._mutex.acquire
        self.release = self._mutex.release

    def wait(self, timeout: float | None = None) -> bool:
        """Waits to be notified; returns whether that came before the timeout."""
        kernel = current.kernel()
        assert kernel.running is not None
        me = kernel.running
        self._waiting.append(me)
        depth = self._mutex.let_go()
        try:
            return kernel.park(timeout)
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            if me.process.alive:
                self._mutex.take_back(depth)

    def wait_for(self, predicate: Callable[[], T], timeout: float | None = None) -> T:
        """Waits until the predicate holds; returns what it gave last."""
        kernel = current.kernel()
        end = None if timeout is None else kernel.now + timeout
        result = predicate()
        while not result:
            if end is not None and end <= kernel.now:
                break
            self.wait(None if end is None else end - kernel.now)
            result = predicate()
        return result

    def notify(self, n: int = 1) -> None:
        """Wakes some of those who wait."""
        kernel = current.kernel()
        for thread in self._waiting[:n]:
            kernel.wake(thread)
        del self._waiting[:n]

    def notify_all(self) -> None:
        """Wakes all who wait."""
        self.notify(len(self._waiting))

    def __enter__(self) -> Self:
        self._mutex.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        if self._mutex.locked():  # not where a killed thread leaves a wait
            self._mutex.release()


class Event:
    """A flag to wait for."""

    def __init__(self) -> None:
        self._flag = False
        self._waiting: list[SimThread] = []

    def is_set(self) -> bool:
        """Returns whether it is set."""
        return self._flag

    def set(self) -> None:
        """Sets it, and wake all who wait."""
        self._flag = True
        for thread in self._waiting:
            current.kernel().wake(thread)
        self._waiting.clear()

    def clear(self) -> None:
        """Takes it back."""
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set; returns whether it is."""
        kernel = current.kernel()
        end = None if timeout is None else kernel.now + timeout
        while not self._flag and (end is None or end > kernel.now):
            assert kernel.running is not None
            self._waiting.append(kernel.running)
            kernel.park(None if end is None else end - kernel.now)
        return self._flag


class SimpleQueue(Generic[T]):
    """A queue without bound, whose ``put`` never waits."""

    def __init__(self) -> None:
        self._items: deque[T] = deque()
        self._waiting: deque[SimThread] = deque()

    def put(self, item: T) -> None:
        """Adds an item."""
        self._items.append(item)
        if self._waiting:
            current.kernel().wake(self._waiting.popleft())

    def get(self, *, timeout: float | None = None) -> T:
        """Takes the oldest item, waiting for one; raises ``queue.Empty`` where none comes."""
        kernel = current.kernel()
        kernel.require_life()
        end = None if timeout is None else kernel.now + timeout
        while not self._items:
            if end is not None and end <= kernel.now:
                raise Empty
            assert kernel.running is not None
            self._waiting.append(kernel.running)
            kernel.park(None if end is None else end - kernel.now)
            # Where its time ended it stands there still, and nobody is to be woken in its place.
            with suppress(ValueError):
                self._waiting.remove(kernel.running)
        return self._items.popleft()

    def empty(self) -> bool:
        """Returns whether there is none."""
        return not self._items


class Thread:
    """A thread of the process whose thread makes it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        del group
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.name = name or "thread"
        self.daemon = daemon
        self._thread: SimThread | None = None

    def run(self) -> None:
        """Does its work."""
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def start(self) -> None:
        """Begin."""
        running = current.kernel().running
        assert running is not None
        self._thread = running.process.spawn(self.name, self.run)

    def is_alive(self) -> bool:
        """Returns whether it runs."""
        return self._thread is not None and not self._thread.done

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end."""
        kernel = current.kernel()
        kernel.require_life()
        end = None if timeout is None else kernel.now + timeout
        assert self._thread is not None
        while not self._thread.done and (end is None or end > kernel.now):
            assert kernel.running is not None
            self._thread.joiners.append(kernel.running)
            kernel.park(None if end is None else end - kernel.now)
