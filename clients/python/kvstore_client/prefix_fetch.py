"""Fetches of prefixes: loads from the store's tier 3 into memory that an operator waits for."""

import time
from collections.abc import Callable
from typing import Final, NamedTuple

from kvstore.v1 import prefix_cache_pb2

# Seconds between two calls that ask how far the load is.
FIRST_PAUSE: Final = 0.01
LONGEST_PAUSE: Final = 0.2
# Answers without anything to load after which nothing more is expected, and the seconds between
# them. A store finds nothing if too many operators ask at a time, or if its engine is late.
MOST_IN_VAIN: Final = 3
VAIN_PAUSE: Final = 0.1
# Seconds without progress while the store declines to load more: other fetches of the tenant may
# take the room, or no slot can be freed.
PATIENCE: Final = 2.0


class FetchedPrefix(NamedTuple):
    """The tokens of a prefix's whole pages by where they were found, from the beginning on.

    ``memory_token_count`` were in memory at first. ``disk_token_count`` then came from the store's
    disk and ``remote_token_count`` from the store that hosts share. Tier 3 has
    ``missed_token_count`` more, which did not come in time or found no room.
    """

    memory_token_count: int
    disk_token_count: int
    remote_token_count: int
    missed_token_count: int


class _Progress:
    """The state of a fetch, by its answers so far."""

    def __init__(self, first: int) -> None:
        self.first = self.memory = first
        self.loaded_end = first
        self.found_end = first
        self.remote_start: int | None = None

    def note(self, answer: prefix_cache_pb2.PrefetchPrefixResponse) -> None:
        """Notes an answer."""
        self.memory = answer.memory_token_count
        loading_end = self.memory + answer.loading_token_count
        if answer.loading_token_count:
            self.loaded_end = max(self.loaded_end, loading_end)
        end = loading_end + answer.declined_token_count
        self.found_end = max(self.found_end, end)
        if answer.remote_token_count:
            start = end - answer.remote_token_count
            known = self.remote_start
            self.remote_start = start if known is None else min(known, start)

    def result(self) -> FetchedPrefix:
        """Returns what came. Pages that somebody computed meanwhile count as in memory."""
        came = max(min(self.memory, self.loaded_end) - self.first, 0)
        remote = 0
        if self.remote_start is not None:
            remote = max(self.first + came - max(self.remote_start, self.first), 0)
        missed = max(self.found_end - self.memory, 0)
        return FetchedPrefix(self.first, came - remote, remote, missed)


def fetch_prefix(
    prefetch: Callable[[], prefix_cache_pb2.PrefetchPrefixResponse],
    wanted: int,
    seconds: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> FetchedPrefix:
    """Repeats a prefetch until ``wanted`` tokens are in memory, for ``seconds`` at most.

    It also ends after ``MOST_IN_VAIN`` answers without anything to load, and once the store
    declined to load more for ``PATIENCE`` seconds without progress.
    """
    answer = prefetch()
    progress = _Progress(answer.memory_token_count)
    progress.note(answer)
    now = clock()
    until, moved_at, pause, in_vain = now + seconds, now, FIRST_PAUSE, 0
    while progress.memory < wanted and now < until:
        if not (answer.loading_token_count or answer.declined_token_count):
            in_vain += 1
            pause = max(pause, VAIN_PAUSE)
        if in_vain == MOST_IN_VAIN or now - moved_at >= PATIENCE:
            break
        sleep(min(pause, until - now))
        pause = min(2 * pause, LONGEST_PAUSE)
        before, answer = progress.memory, prefetch()
        progress.note(answer)
        now = clock()
        if progress.memory > before or answer.loading_token_count:
            moved_at = now
    return progress.result()
