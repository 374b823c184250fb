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

    def end(self, key: str, now: float) -> None:
        """Ends the pin of a page that was read, and those whose time is over."""
        with self._mutex:
            ended = self._expired(now)
            if key in self._pins:
                ended.append(self._pins.pop(key)[1])
        _release(ended)

    def clear(self) -> None:
        """Ends all pins."""
        with self._mutex:
            ended = [match for _, match in self._pins.values()]
            self._pins.clear()
        _release(ended)

    def _expired(self, now: float) -> list[Match]:
        """Removes and returns the matches whose time is over: the oldest come first."""
        ended = []
        while self._pins:
            key, (until, match) = next(iter(self._pins.items()))
            if until > now:
                break
            del self._pins[key]
            ended.append(match)
        return ended


def _release(matches: list[Match]) -> None:
    for each in matches:
        each.release()
