"""The store's calls for pages that are named by hashes."""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from kvstore_client import Acquired, Namespace
from kvstore_client.engines.reserved_pages import IDLE_BEFORE_TAKEOVER, with_first_pages
from kvstore_client.errors import StoreError
from kvstore_sglang.hicache.hash_path import WORDS, HashPath
from kvstore_sglang.hicache.host_pages import HostPages, PoolPiece, copy_in, copy_out
from kvstore_sglang.hicache.page_pins import PagePins

# Seconds for which pages that exist stay pinned. SGLang waits at most that long for a prefetch.
PIN_SECONDS: Final = 30.0
# Tries of a save that gets no slots: a new namespace's memory is mapped in the background.
SAVE_TRIES: Final = 4
SAVE_PAUSE: Final = 0.05


class HashStore:
    """Finds, loads and saves pages of a host pool. Any thread may use it.

    No method raises for a failure of the store: pages are absent then, and ``counts`` tells.
    """

    def __init__(self, namespace: Namespace, pages: HostPages, counts: "Counter[str]") -> None:
        self._namespace = namespace
        self._pages = pages
        self._counts = counts
        self._pins = PagePins(PIN_SECONDS)
        self._closed = threading.Event()

    def use(self, namespace: Namespace) -> None:
        """Uses another namespace from now on."""
        self._namespace = namespace
        self._pins.clear()

    def close(self) -> None:
        """Ends all pins, and waits in no save any more."""
        self._closed.set()
        self._pins.clear()

    def find(self, path: HashPath, keys: Sequence[str]) -> int:
        """Returns how many pages after the prefix are there, and pins them for a while.

        ``keys`` name these pages.
        """
        now = time.monotonic()
        self._pins.expire(now)
        match = self._namespace.match(path.query)
        found = path.found(match.page_count)
        if match.failure is not None:
            self._counts["lookups_unavailable"] += 1
        else:
            outcome = "full" if found == path.count else "partial" if found else "miss"
            self._counts[f"lookups_{outcome}"] += 1
        self._counts["asked_tokens"] += path.count * self._pages.page_tokens
        self._counts["matched_tokens"] += found * self._pages.page_tokens
        if found:
            self._pins.hold(keys[found - 1], match, now)
        else:
            match.release()
        return found

    def load(self, path: HashPath, keys: Sequence[str], indices: Any) -> list[bool]:  # noqa: ANN401  # a tensor
        """Copies pages into the pool; returns which of them landed: the first ones, or none."""
        pieces = self._pages.pieces(indices)
        landed = 0
        with self._namespace.match(path.query) as match:
            found = path.found(match.page_count)
            pages = match.pages[path.before : path.before + found]
            for page, run in zip(pages, pieces[:found], strict=True):
                copy_out(self._namespace.page(page), run)
            try:
                match.require_current()
                landed = found
            except StoreError:
                self._counts["loads_failed"] += 1
        self._pins.end(keys[-1])
        self._counts["loaded_tokens_1"] += landed * self._pages.page_tokens
        self._counts["load_bytes"] += landed * self._pages.page_bytes
        return [number < landed for number in range(path.count)]

    def save(self, path: HashPath, indices: Any) -> list[bool]:  # noqa: ANN401  # a tensor
        """Stores pages of the pool; returns which of them the store has now.

        Waits some tenths of a second if it gets no slots.
        """
        pieces = self._pages.pieces(indices)
        stored = 0
        for number in range(SAVE_TRIES):
            found = self._save(path, pieces, yielding=number == 0)
            stored = max(stored, found or 0)
            if found is not None or self._closed.wait(SAVE_PAUSE):
                break
        else:
            self._counts["saves_failed"] += 1
        return [page < stored for page in range(path.count)]

    def _save(
        self, path: HashPath, pieces: Sequence[list[PoolPiece]], *, yielding: bool
    ) -> int | None:
        """Returns how many pages after the prefix are stored; None if a later try may store some.

        With ``yielding`` another engine that saves the same pages now goes first.
        """
        namespace = self._namespace
        budget = namespace.new_budget()
        acquired = namespace.acquire(
            path.query,
            total_page_count=path.total,
            yield_to_in_flight=yielding,
            yield_idle=IDLE_BEFORE_TAKEOVER,
            budget=budget,
        )
        with with_first_pages(acquired, namespace, path.total, budget):
            there = acquired.match.page_count
            other = acquired.in_flight
            if other is not None and other.token_count >= path.total * WORDS:
                return path.count
            if there >= path.total:
                return path.count
            if acquired.reservation is None or not acquired.reservation.page_count:
                return None
            if there < path.before:
                # The prefix is gone, and without it nobody finds the pages after it.
                return 0
            return self._copy(namespace, path, pieces, acquired)

    def _copy(
        self,
        namespace: Namespace,
        path: HashPath,
        pieces: Sequence[list[PoolPiece]],
        acquired: Acquired,
    ) -> int | None:
        """Copies pages into reserved slots and inserts them; returns as :meth:`_save` does."""
        there, reservation = acquired.match.page_count, acquired.reservation
        assert reservation is not None
        end = there + reservation.page_count
        missing = pieces[there - path.before : end - path.before]
        for page, run in zip(reservation.pages, missing, strict=True):
            copy_in(namespace.page(page), run)
        tokens = path.tokens_between(there, end)
        try:
            reservation.insert(tokens, position=there * WORDS, base=acquired.match)
        except StoreError:
            self._counts["inserts_failed"] += 1
            return None
        self._counts["stored_tokens"] += (end - there) * self._pages.page_tokens
        self._counts["save_bytes"] += (end - there) * self._pages.page_bytes
        return end - path.before
