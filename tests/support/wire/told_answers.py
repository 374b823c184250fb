"""Answers that come when a test says so."""

from collections.abc import Callable
from typing import Any


class ToldAnswers:
    """Work that is done when told, in any order, and handed over at the next hook."""

    def __init__(self) -> None:
        self.asked: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []
        self._done: list[Callable[[], None]] = []
        # The bounds of the waits so far, in seconds, and whether answers arrive within them.
        self.waits: list[float] = []
        self.come_in_time = False

    @property
    def under_way(self) -> int:
        """Returns how many questions were asked and not yet answered."""
        return len(self.asked) + len(self._done)

    def ask(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Keeps it for later."""
        self.asked.append((work, done))

    def answer(self, index: int = 0) -> None:
        """Does one of the pieces of work, as a thread would."""
        work, done = self.asked.pop(index)
        result = work()
        self._done.append(lambda: done(result))

    def answer_all(self) -> None:
        """Does all of it, and what it leads to, and hand it over."""
        while self.asked or self._done:
            while self.asked:
                self.answer()
            self.deliver()

    def deliver(self) -> None:
        """Hands over what was done."""
        while self._done:
            self._done.pop(0)()

    def wait(self, timeout: float) -> None:
        """Does not."""

    def deliver_until(self, met: Callable[[], bool], timeout: float) -> None:
        """Hands over what was done, and all of it if answers come in time."""
        self.waits.append(timeout)
        self.deliver()
        while self.come_in_time and self.asked and not met():
            self.answer()
            self.deliver()

    def close(self) -> None:
        """Does what is left."""
        self.answer_all()
