"""Tells whoever listens that extents may be owed, or that processes may be forgotten."""

from collections.abc import Callable
from threading import Lock


class Announcer:
    """A list of wake-ups. Thread-safe.

    Says that something changed, not what: listeners look at the store, so that
    nothing is lost when two changes make one wake-up.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._wake_ups: list[Callable[[], None]] = []

    def subscribe(self, wake_up: Callable[[], None]) -> None:
        """Have ``wake_up`` called at each announcement, from any thread.

        It MUST return at once, and neither raise nor call the store.
        """
        with self._mutex:
            self._wake_ups.append(wake_up)

    def unsubscribe(self, wake_up: Callable[[], None]) -> None:
        """Never call ``wake_up`` again, once this returned."""
        with self._mutex:
            self._wake_ups.remove(wake_up)

    def announce(self) -> None:
        """Wake everybody who listens."""
        with self._mutex:
            for wake_up in self._wake_ups:
                wake_up()
