"""Pins of prefixes that HiCache found and has not read yet."""

from collections import OrderedDict
from threading import Lock

from kvstore_client import Match


class PagePins:
    """Pinned matches by their last page, each for ``seconds`` at most. Any thread may use it.

    HiCache asks which pages exist and reads them later, in another call without an id of the
    request. Until then a pin keeps the pages. A prefetch may also be given up without a word, so
    a pin ends after a time, when a later call comes.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._pins: OrderedDict[str, tuple[float, Match]] = OrderedDict()
        self._mutex = Lock()

    def __len__(self) -> int:
        return len(self._pins)

    def hold(self, key: str, match: Match, now: float) -> None:
        """Pins a match until its last page, ``key``, is read. A later one replaces it."""
        with self._mutex:
            ended = self._expired(now)
            if key in self._pins:
                ended.append(self._pins.pop(key)[1])
            self._pins[key] = now + self._seconds, match
        _release(ended)

    def end(self, key: str) -> None:
        """Ends the pin of a page that was read, if there is one."""
        with self._mutex:
            found = self._pins.pop(key, None)
        if found is not None:
            _release([found[1]])

    def expire(self, now: float) -> None:
        """Ends the pins whose time is over, and those of a store that is gone.

        A client attaches to a store anew only once nothing of the old one is held.
        """
        with self._mutex:
            ended = self._expired(now)
        _release(ended)

    def clear(self) -> None:
        """Ends all pins."""
        with self._mutex:
            ended = [match for _, match in self._pins.values()]
            self._pins.clear()
        _release(ended)

    def _expired(self, now: float) -> list[Match]:
        """Removes and returns the matches that are kept no longer."""
        over = [
            key for key, (until, match) in self._pins.items() if until <= now or match.session_ended
        ]
        return [self._pins.pop(key)[1] for key in over]


def _release(matches: list[Match]) -> None:
    for each in matches:
        each.release()
