"""Saves: a thread copies pages of the device pool into the store, and tries again if it must."""

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from functools import partial
from threading import Event
from typing import Final

import torch

from kvstore_client import Acquired, Namespace, Reservation, StoreBudget
from kvstore_client.calls.deadlines import Backoff
from kvstore_client.engines.reserved_pages import (
    IDLE_BEFORE_TAKEOVER,
    SAVE_BUDGET,
    with_first_pages,
)
from kvstore_client.errors import StoreError, StoreUnavailable
from kvstore_client.values.packed_tokens import ONE_MORE, TOKEN_BYTES
from kvstore_sglang.engine.component_pages import ComponentPages
from kvstore_sglang.engine.engine_store import EngineStore
from kvstore_sglang.transfers.hanging_pages import HangingPages, HangingSaves
from kvstore_sglang.transfers.page_copies import PageCopies

_logger = logging.getLogger(__name__)

MICROSECONDS: Final = 1e6
# Seconds from a save's begin until its last try. SGLang cannot evict its pages meanwhile.
RETRY_SECONDS: Final = 2.0
FIRST_PAUSE, LONGEST_PAUSE = 0.01, 0.2
# Seconds without further tries after a save found no room: the next ones would find none either.
AFTER_REFUSAL: Final = 0.5


def _ignore() -> None:
    pass


@dataclass(frozen=True, slots=True)
class SavedPages:
    """The pages of a sequence, all of which are in the device pool.

    ``tokens`` are those of whole pages, packed. ``slots`` has the slot of each, and perhaps of
    more; it may be read once ``events`` of the device happened. ``saved`` is called, on the
    scheduler's thread, once all of them are in the store. ``hanging`` are pages of other
    components than full attention that belong to pages of the sequence.
    """

    salt: bytes
    tokens: bytes
    slots: torch.Tensor
    events: Sequence[torch.cuda.Event] = ()
    saved: Callable[[], None] = _ignore
    hanging: Sequence[HangingPages] = ()


class SaveOutcome(Enum):
    """The end of one try to save pages."""

    SAVED = "saved"
    FAILED = "failed"
    YIELDED = "yielded"
    NO_ROOM = "no room"
    NOT_OPEN = "not open"


@dataclass(slots=True)
class _Result:
    """The end of a save, and its copies."""

    pages: SavedPages
    saved: bool = False
    stored_pages: int = 0
    byte_count: int = 0
    seconds: float = 0.0


class Saves:
    """Saves pages one sequence after another, on a thread. The scheduler's thread uses it.

    It copies only pages that the store lacks. While another engine saves the same pages it waits
    for them, for ``RETRY_SECONDS`` at most. It also tries again while the store has no room, and
    while the namespace opens. SGLang keeps the pages until :meth:`pop` returned their result.
    """

    def __init__(
        self,
        store: EngineStore,
        path: ComponentPages,
        copies: PageCopies,
        page_tokens: int,
        counts: "Counter[str]",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``path`` are the pages of full attention."""
        self._store = store
        self._path = path
        self._copies = copies
        self._hanging = HangingSaves(copies, page_tokens)
        self._page_tokens = page_tokens
        self._page_bytes = page_tokens * TOKEN_BYTES
        self._counts = counts
        self._clock = clock
        self._no_room_until = clock()
        self._results: deque[_Result] = deque()
        self._stopping = Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvstore-sglang-save")

    def queue(self, pages: SavedPages) -> None:
        """Saves pages after those queued before. :meth:`pop` returns the results in this order."""
        self._thread.submit(partial(self._run, pages, self._clock() + RETRY_SECONDS))

    @property
    def completed_count(self) -> int:
        """The number of results that :meth:`pop` returns at once."""
        return len(self._results)

    def pop(self) -> bool:
        """Returns whether all pages of the oldest ended save are in the store.

        Raises ``IndexError`` if there is none.
        """
        result = self._results.popleft()
        self._counts["stored_tokens"] += result.stored_pages * self._page_tokens
        self._counts["save_bytes"] += result.byte_count
        self._counts["save_microseconds"] += round(result.seconds * MICROSECONDS)
        self._counts["saves_failed"] += not result.saved
        if result.saved:
            result.pages.saved()
        return result.saved

    def reset(self) -> None:
        """Waits for the save under way, and drops those that wait, with all results."""
        self._stopping.set()
        self._thread.submit(self._stopping.clear).result()
        while self._results:
            self.pop()

    def close(self) -> None:
        """Waits for the save under way, drops those that wait, and ends the thread."""
        self._stopping.set()
        self._thread.shutdown()
        self._results.clear()

    def _run(self, pages: SavedPages, until: float) -> None:
        result = _Result(pages)
        begin = time.monotonic()
        try:
            result.saved = self._save(pages, until, result)
        except Exception:  # an error is a page that is not saved
            _logger.exception("save_failed")
        result.seconds = time.monotonic() - begin if result.byte_count else 0.0
        self._results.append(result)

    def _save(self, pages: SavedPages, until: float, result: _Result) -> bool:
        pauses = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        attempt = SaveOutcome.FAILED
        while not self._stopping.is_set():
            last = self._clock() >= until
            attempt = self._attempt(pages, result, yielding=not last)
            if attempt in (SaveOutcome.SAVED, SaveOutcome.FAILED) or last:
                break
            if attempt is SaveOutcome.NO_ROOM and self._clock() < self._no_room_until:
                break
            self._stopping.wait(pauses.delay())
        if attempt is SaveOutcome.NO_ROOM:
            self._no_room_until = self._clock() + AFTER_REFUSAL
        if attempt is not SaveOutcome.SAVED:
            _logger.debug("not_saved", extra={"reason": attempt.value})
        return attempt is SaveOutcome.SAVED

    def _attempt(self, pages: SavedPages, result: _Result, *, yielding: bool) -> SaveOutcome:
        namespace = self._store.namespace(pages.salt)
        failure = namespace.failure
        if failure is not None:
            soon = self._store.usable or not self._store.tried
            opens = isinstance(failure, StoreUnavailable) and soon
            return SaveOutcome.NOT_OPEN if opens else SaveOutcome.FAILED
        budget = StoreBudget(SAVE_BUDGET)
        if pages.hanging and self._hanging.are_stored(namespace, pages, budget):
            return SaveOutcome.SAVED
        outcome = self._save_path(pages, namespace, result, budget, yielding=yielding)
        if outcome is not SaveOutcome.SAVED or not pages.hanging:
            return outcome
        saved = self._hanging.save(namespace, pages, budget)
        result.byte_count += saved.byte_count
        return SaveOutcome.SAVED if saved.stored else SaveOutcome.NO_ROOM

    def _save_path(
        self,
        pages: SavedPages,
        namespace: Namespace,
        result: _Result,
        budget: StoreBudget,
        *,
        yielding: bool,
    ) -> SaveOutcome:
        page_count = len(pages.tokens) // self._page_bytes
        with namespace.acquire(
            pages.tokens + ONE_MORE,
            total_page_count=page_count,
            yield_to_in_flight=yielding,
            yield_idle=IDLE_BEFORE_TAKEOVER,
            budget=budget,
        ) as acquired:
            if acquired.match.page_count >= page_count:
                return SaveOutcome.SAVED
            if acquired.failure is not None:
                return SaveOutcome.FAILED
            if acquired.in_flight is not None and acquired.reservation is None:
                return SaveOutcome.YIELDED
            with_first_pages(acquired, namespace, page_count, budget)
            if acquired.reservation is None or not acquired.reservation.page_count:
                return SaveOutcome.NO_ROOM
            return self._publish(pages, acquired, acquired.reservation, result)

    def _publish(
        self, pages: SavedPages, acquired: Acquired, reservation: Reservation, result: _Result
    ) -> SaveOutcome:
        """Copies the missing pages into reserved slots, and inserts them."""
        start, end = reservation.start_page, reservation.start_page + reservation.page_count
        slots = pages.slots[start * self._page_tokens : end * self._page_tokens]
        try:
            transfer = self._copies.transfer(self._path, slots, [reservation.pages], pages.events)
            result.byte_count += self._copies.save(transfer, reservation.pages.dated_runs)
            inserted = reservation.insert(
                pages.tokens[start * self._page_bytes : end * self._page_bytes],
                position=start * self._page_tokens,
                base=acquired.match,
            )
        except (KeyError, StoreError) as error:
            _logger.debug("insert_failed", extra={"reason": repr(error)})
            return SaveOutcome.FAILED
        result.stored_pages += inserted.published_page_count
        complete = end * self._page_bytes == len(pages.tokens)
        return SaveOutcome.SAVED if complete else SaveOutcome.NO_ROOM
