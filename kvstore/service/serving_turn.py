"""The turn to serve: of the threads that serve lanes, one makes calls at a time.

Threads that make calls at the same time wait for each other, for the interpreter and for the
store's mutex: eight of them answer later than one (decision 57). So a thread keeps the turn from
call to call, and passes it on before it waits for anything else.
"""

from collections import deque
from threading import Lock, local
from types import TracebackType
from typing import Self

_thread = local()


class ServingTurn:
    """A turn that one thread has at a time, in a ``with`` block or until it passes it on.

    The thread that waits longest has it next.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._is_free = True
        self._waiting: deque[Lock] = deque()

    @property
    def is_mine(self) -> bool:
        """True if this thread has the turn."""
        return getattr(_thread, "turn", None) is self

    def pass_on(self) -> None:
        """Lets another thread have the turn. This thread MUST have it."""
        _thread.turn = None
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_free = True

    def __enter__(self) -> Self:
        gate = Lock()
        gate.acquire()
        with self._mutex:
            if self._is_free:
                self._is_free = False
                gate.release()
            else:
                self._waiting.append(gate)
        gate.acquire()
        _thread.turn = self
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_mine:
            self.pass_on()


def let_others_serve() -> None:
    """Passes this thread's turn on, if it has one: it is about to wait, or to work for long."""
    turn: ServingTurn | None = getattr(_thread, "turn", None)
    if turn is not None:
        turn.pass_on()
