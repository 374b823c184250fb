"""The turn to serve: of the threads that serve lanes, one makes calls at a time.

Threads that make calls at the same time wait for each other, for the interpreter and for the
store's mutex: eight of them answer later than one (decision 57). So a thread keeps the turn from
call to call, and passes it on before it waits for anything else.
"""

from threading import Lock, local
from types import TracebackType
from typing import Self

_thread = local()


class ServingTurn:
    """A turn that one thread has at a time, in a ``with`` block or until it passes it on."""

    def __init__(self) -> None:
        self._mutex = Lock()

    @property
    def is_mine(self) -> bool:
        """True if this thread has the turn."""
        return getattr(_thread, "turn", None) is self

    def pass_on(self) -> None:
        """Lets another thread have the turn. This thread MUST have it."""
        _thread.turn = None
        self._mutex.release()

    def __enter__(self) -> Self:
        self._mutex.acquire()
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
