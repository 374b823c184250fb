"""The store's calls for pages that are named by hashes."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from kvstore_client import Acquired, Namespace
from kvstore_client.errors import StoreError
from kvstore_sglang.hicache.hash_path import WORDS, HashPath
from kvstore_sglang.hicache.host_pages import HostPages, copy_in, copy_out
from kvstore_sglang.hicache.page_pins import PagePins

# Seconds for which pages that exist stay pinned. A prefetch of SGLang's takes 2 s, and at most 30.
PIN_SECONDS: Final = 20.0
# Tries of a save that gets no slots: a new namespace's memory is mapped in the background.
SAVE_TRIES: Final = 4
SAVE_PAUSE: Final = 0.05
# Seconds without progress after which another engine's save of the same pages is not waited for.
YIELD_IDLE: Final = 1.0


class HashStore:
    """Finds, loads and saves pages of a host pool. Any thread may use it.

    No method raises for a failure of the store: pages are absent then, and ``counts`` says so.
    """

    def __init__(self, namespace: Namespace, pages: HostPages) -> None:
        self._namespace = namespace
        self._pages = pages
        self._pins = PagePins(PIN_SECONDS)
        self._paused = threading.Event()
        self.counts: Counter[str] = Counter()

    def use(self, namespace: Namespace) -> None:
        """Uses another namespace from now on."""
        self._namespace = namespace
        self._pins.clear()

    def close(self) -> None:
        """Ends all pins and pauses."""
        self._paused.set()
        self._pins.clear()

    def find(self, path: HashPath, keys: Sequence[str]) -> int:
        """Returns how many pages after the prefix are there, and pins them for a while."""
        match = self._namespace.match(path.query)
        found = path.found(match.page_count)
        self.counts["lookups"] += 1
        self.counts["found_pages"] += found
        self.counts["failed_lookups"] += match.failure is not None
        if found:
            self._pins.hold(keys[found - 1], match, time.monotonic())
        else:
            match.release()
        return found

    def load(self, path: HashPath, keys: Sequence[str], indices: Any) -> list[bool]:  # noqa: ANN401  # a tensor
        """Copies pages into the pool; returns which of them landed, the first ones or none."""
        pieces = self._pages.pieces(indices)
        landed = 0
        with self._namespace.match(path.query) as match:
            found = path.found(match.page_count)
            for page, run in zip(match.pages[path.before : path.before + found], pieces, strict=False):
                copy_out(self._namespace.page(page), run)
            try:
                match.require_current()
                landed = found
            except StoreError:
                self.counts["failed_loads"] += 1
        if keys:
            self._pins.end(keys[-1], time.monotonic())
        self.counts["loaded_pages"] += landed
        return [number < landed for number in range(path.count)]

    def save(self, path: HashPath, indices: Any) -> list[bool]:  # noqa: ANN401  # a tensor
        """Stores pages of the pool; returns which of them the store has now."""
        pieces = self._pages.pieces(indices)
        for number in range(SAVE_TRIES):
            stored = self._save(path, pieces, yielding=number == 0)
            if stored is not None:
                return [page < stored for page in range(path.count)]
            self._paused.wait(SAVE_PAUSE)
        self.counts["failed_saves"] += 1
        return [False] * path.count

    def _save(self, path: HashPath, pieces: Sequence[Any], *, yielding: bool) -> int | None:
        """Returns how many pages after the prefix are stored; None if a later try may do more."""
        with self._namespace.acquire(
            path.query,
            total_page_count=path.total,
            yield_to_in_flight=yielding,
            yield_idle=YIELD_IDLE,
        ) as acquired:
            other = acquired.in_flight
            if other is not None and acquired.reservation is None:
                # Another engine saves the same pages now.
                return path.count if other.token_count >= path.total * WORDS else None
            there = acquired.match.page_count
            if there >= path.total:
                return path.count
            if acquired.reservation is None:
                return None
            if there < path.before:
                # The prefix is gone, and pages without it would never be found.
                return 0
            return self._copy(path, pieces, acquired, there)

    def _copy(
        self, path: HashPath, pieces: Sequence[Any], acquired: Acquired, there: int
    ) -> int | None:
        reservation = acquired.reservation
        assert reservation is not None
        for page, run in zip(reservation.pages, pieces[there - path.before :], strict=True):
            copy_in(self._namespace.page(page), run)
        try:
            reservation.insert(
                path.tokens_from(there), position=there * WORDS, base=acquired.match
            )
        except StoreError:
            self.counts["failed_inserts"] += 1
            return None
        self.counts["stored_pages"] += path.total - there
        return path.count
