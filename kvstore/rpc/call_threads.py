"""The threads that take calls, one tenant's after another's.

gRPC hands each call to its thread pool as it comes: in one line, where a tenant
that sends a thousand calls at once makes everybody else wait for all of them,
and beyond the server's bound has everybody else's calls refused. Here each lane
has a line of its own, the lanes take turns, and who has too many calls under way
is refused before a thread is needed. A call may wait in its thread for a request
that is slow to come: so no lane has all the threads either.
"""

from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import Lock, local
from typing import Any, ParamSpec, TypeVar

from kvstore.rpc.turns import Turns

P = ParamSpec("P")
T = TypeVar("T")

# The lane of what is submitted in a thread where no call arrived.
ERRANDS = ("errands",)


class CallThreads(ThreadPoolExecutor):
    """A pool of ``thread_count`` threads for at most ``capacity`` calls.

    Lanes have threads as :class:`Turns` says.

    A call stands in the lane that ``arrive`` named last in the thread that submits
    it: gRPC asks its interceptors about a call and submits it in one thread, one
    call after another. Whatever else is submitted stands in a lane of its own.
    """

    def __init__(self, thread_count: int, capacity: int, name: str = "kvstore-rpc") -> None:
        super().__init__(thread_count, thread_name_prefix=name)
        self._capacity = capacity
        self._arrived = local()
        self._mutex = Lock()
        self._turns: Turns[Callable[[], None]] = Turns(thread_count)
        self._counts: dict[Hashable, int] = {}
        self._total = 0

    @property
    def largest_lane(self) -> int:
        """How many calls a lane can ever have under way where no other has any."""
        return self._capacity // 3

    def arrive(self, lane: Hashable, *, always: bool = False) -> bool:
        """Name the lane of the call that is submitted next in this thread.

        Returns False where it has to be refused: then the next call is run at once, in
        the thread that submits it, and MUST NOT wait for anything. A lane has at most
        half as many calls under way as there is room left for, or as many, for calls
        that come in ``always``: however many lanes are flooded, some room is left.
        """
        with self._mutex:
            count = self._counts.get(lane, 0)
            room = self._capacity - self._total
        admitted = count < (room if always else room // 2)
        self._arrived.lane, self._arrived.refused = lane, not admitted
        return admitted

    def refuse(self) -> None:
        """Have the call that is submitted next in this thread run as one that is refused."""
        self._arrived.refused = True

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        """Run a call when its lane's turn comes."""
        lane: Hashable = getattr(self._arrived, "lane", ERRANDS)
        future: Future[T] = Future()
        work = partial(_run, future, partial(fn, *args, **kwargs))
        if getattr(self._arrived, "refused", False):
            work()
            return future
        with self._mutex:
            self._counts[lane] = self._counts.get(lane, 0) + 1
            self._total += 1
        self._turns.put(lane, work)
        future.add_done_callback(partial(self._leave, lane))
        super().submit(self._run_next)
        return future

    def _run_next(self) -> None:
        """Run calls, each the first of the lane that waits longest, while a lane may have more."""
        turn = self._turns.begin()
        while turn is not None:
            lane, work = turn
            work()
            turn = self._turns.end(lane)

    def _leave(self, lane: Hashable, _: "Future[Any]") -> None:
        with self._mutex:
            self._total -= 1
            self._counts[lane] -= 1
            if not self._counts[lane]:
                del self._counts[lane]


def _run(future: "Future[T]", call: Callable[[], T]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - it is whoever's that has the future
            future.set_exception(error)
