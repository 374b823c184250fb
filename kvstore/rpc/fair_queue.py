"""The threads that take calls, one tenant's after another's.

gRPC hands each call to its thread pool as it arrives. In one queue, a tenant that sends a thousand
calls at once would make all others wait for them, and beyond the server's bound the calls of others
would be refused. Here each tenant has a queue of its own, and the threads serve the queues in
turns. A tenant with too many calls under way is refused before a thread is needed. A call may wait
in its thread for a request that is slow to come, so no queue gets all threads either.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Condition, Lock, local
from typing import Any, Generic, ParamSpec, TypeVar

W = TypeVar("W")


class FairQueue(Generic[W]):
    """Work of many queues for ``thread_count`` threads. Thread-safe; nothing here waits.

    A queue gets a thread for another piece of work only while it has fewer threads than are idle.
    So one queue alone has half of the threads, and one is always left for the next queue. A thread
    that ends some work is given the work to do next, until none is left, or calls :meth:`leave`.
    """

    def __init__(self, thread_count: int) -> None:
        self._mutex = Lock()
        self._waiting: OrderedDict[Hashable, deque[W]] = OrderedDict()
        self._running: dict[Hashable, int] = {}
        self._idle = thread_count
        # Turns that queues give up, since their work took longer than a turn.
        self._owed: dict[Hashable, int] = {}

    @property
    def has_waiting(self) -> bool:
        """True if any work waited a moment ago."""
        return bool(self._waiting)

    def put(self, queue: Hashable, work: W) -> None:
        """Adds work to the end of a queue."""
        with self._mutex:
            self._waiting.setdefault(queue, deque()).append(work)

    def next(self) -> tuple[Hashable, W] | None:
        """Returns the first work of the queue that waits longest and may have a thread, if any."""
        with self._mutex:
            return self._next() if self._waiting else None

    def leave(self, queue: Hashable) -> None:
        """Notes that work of a queue is done, and takes none."""
        with self._mutex:
            self._left(queue)

    def end(self, queue: Hashable) -> tuple[Hashable, W] | None:
        """Notes that work of a queue is done, and returns the next work as :meth:`next` does."""
        with self._mutex:
            self._left(queue)
            return self._next() if self._waiting else None

    def charge(self, queue: Hashable, turns: int) -> None:
        """Notes that a piece of work of a queue is worth so many turns.

        If others wait, the queue gives up the turns beyond the first. Once nothing waits, no
        queue owes a turn.
        """
        with self._mutex:
            if turns > 1 and self._waiting.keys() - {queue}:
                self._owed[queue] = self._owed.get(queue, 0) + turns - 1

    def _left(self, queue: Hashable) -> None:
        self._idle += 1
        running = self._running[queue] - 1
        if running:
            self._running[queue] = running
        else:
            del self._running[queue]

    def _next(self) -> tuple[Hashable, W] | None:
        may = (each for each in self._waiting if self._running.get(each, 0) < self._idle)
        queue = self._first_paid(list(may)) if self._owed else next(may, None)
        if queue is None:
            return None
        waiting = self._waiting[queue]
        work = waiting.popleft()
        if waiting:
            self._waiting.move_to_end(queue)
        else:
            del self._waiting[queue]
            if not self._waiting:
                self._owed.clear()
        self._running[queue] = self._running.get(queue, 0) + 1
        self._idle -= 1
        return queue, work

    def _first_paid(self, may: list[Hashable]) -> Hashable | None:
        """Returns the first queue that owes no turn, or else the one that owes the fewest.

        Each queue that is passed over has paid a turn, or as many as the chosen one owed.
        """
        queue = min(may, key=lambda each: self._owed.get(each, 0), default=None)
        if queue is None:
            return None
        paid = max(self._owed.pop(queue, 0), 1)
        for each in may:
            left = self._owed.get(each, 0) - paid
            if left > 0:
                self._owed[each] = left
            else:
                self._owed.pop(each, None)
        return queue


P = ParamSpec("P")
T = TypeVar("T")

# The queue of work that is submitted in a thread where no call arrived.
OTHER = ("other",)


class CallThreads(ThreadPoolExecutor):
    """A pool of ``thread_count`` threads for at most ``capacity`` calls, shared fairly by queues.

    A call waits in the queue that ``arrive`` named last in the thread that submits it: gRPC asks
    its interceptors about a call and submits it in one thread, one call after another. All other
    work waits in a queue of its own. :class:`FairQueue` says which queue gets a thread.
    """

    def __init__(self, thread_count: int, capacity: int, name: str = "kvstore-rpc") -> None:
        super().__init__(thread_count, thread_name_prefix=name)
        self._capacity = capacity
        self._arrived = local()
        self._mutex = Lock()
        self._idle = Condition(self._mutex)
        self._fair: FairQueue[Callable[[], None]] = FairQueue(thread_count)
        self._counts: dict[Hashable, int] = {}
        self._total = 0

    @property
    def largest_queue(self) -> int:
        """The most calls that a queue can have under way while no other has any."""
        return self._capacity // 3

    def arrive(self, queue: Hashable, *, always: bool = False) -> bool:
        """Names the queue of the call that is submitted next in this thread.

        Returns False if it has to be refused. Then the next call runs at once, in the thread that
        submits it, and MUST NOT wait for anything. A queue has at most half as many calls under
        way as room is left for, or as many for calls that come in ``always``. So some room is left
        however many queues are flooded.
        """
        with self._mutex:
            count = self._counts.get(queue, 0)
            room = self._capacity - self._total
        admitted = count < (room if always else room // 2)
        self._arrived.queue, self._arrived.refused = queue, not admitted
        return admitted

    def charge(self, queue: Hashable, turns: int) -> None:
        """Notes that a call of a queue is worth so many turns, as :meth:`FairQueue.charge`."""
        self._fair.charge(queue, turns)

    def refuse(self) -> None:
        """Marks the call that is submitted next in this thread as refused."""
        self._arrived.refused = True

    def wait_idle(self, patience: float) -> bool:
        """Waits until no call waits or runs; returns whether that came within the seconds.

        Calls that are refused do not count. They touch nothing.
        """
        with self._idle:
            return self._idle.wait_for(lambda: not self._total, patience)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Runs a call when a thread is free for its queue."""
        queue: Hashable = getattr(self._arrived, "queue", OTHER)
        future: Future[T] = Future()
        work = partial(_run, future, partial(fn, *args, **kwargs))
        if getattr(self._arrived, "refused", False):
            work()
            return future
        with self._mutex:
            self._counts[queue] = self._counts.get(queue, 0) + 1
            self._total += 1
        self._fair.put(queue, work)
        future.add_done_callback(partial(self._leave, queue))
        super().submit(self._run_next)
        return future

    def _run_next(self) -> None:
        """Runs calls, each the first of the queue that waits longest, while one may have more."""
        following = self._fair.next()
        while following is not None:
            queue, work = following
            work()
            following = self._fair.end(queue)

    def _leave(self, queue: Hashable, _: "Future[Any]") -> None:
        with self._mutex:
            self._total -= 1
            self._counts[queue] -= 1
            if not self._counts[queue]:
                del self._counts[queue]
            if not self._total:
                self._idle.notify_all()


def _run(future: "Future[T]", call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - the error goes to whoever has the future
            future.set_exception(error)
