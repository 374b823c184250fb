"""Lookups of waiting requests: asked once, remembered by request, and pinned until they load."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from kvstore_client import Match, StoreBudget
from kvstore_client.errors import StoreTimedOut
from kvstore_client.values.packed_tokens import ONE_MORE

_logger = logging.getLogger(__name__)

# Seconds for which an answer without all pages is kept: others may save the rest meanwhile.
KEPT_SECONDS: Final = 1.0
# Seconds after which the scheduler may wait for the store as long again.
RENEWAL_SECONDS: Final = 1.0
# Seconds after which nobody seems to wait for pinned pages: a request that does asks again.
FORGOTTEN_SECONDS: Final = 60.0
# Seconds between two searches for lookups to end.
SWEEP_SECONDS: Final = 0.25


def _ignore(page_count: int) -> None:
    del page_count


class PrefixSource(Protocol):
    """Finds cached prefixes in a store."""

    def start_page(self, device_pages: int) -> int:
        """Returns the first page for which an answer holds, if the device has ``device_pages``."""

    def match(self, salt: bytes, tokens: bytes, budget: StoreBudget, start_page: int = 0) -> Match:
        """Pins the longest cached prefix of packed tokens, less than all of them.

        The caller has the pages before ``start_page`` itself.
        """


@dataclass(eq=False, slots=True)
class _Lookup:
    """A request's lookup: its salt and tokens, and the answer from ``start_page`` on.

    ``match`` is None once its pages were released, because the device had all of them.
    """

    salt: bytes
    tokens: Sequence[int]
    start_page: int
    match: Match | None
    page_count: int
    asked_at: float
    used_at: float


class Lookups:
    """Looks waiting requests up in the store. The scheduler's thread uses it.

    A request whose queue is walked again gets its remembered answer, without a call. All lookups
    of a second together wait ``timeout`` seconds at most for the store, so that a slow store slows
    no scheduler. A match is pinned until :meth:`take` hands it over, or :meth:`drop` releases it.
    """

    def __init__(
        self,
        source: PrefixSource,
        pack: Callable[[Sequence[int]], bytes],
        page_tokens: int,
        timeout: float,
        counts: "Counter[str]",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pack`` returns the whole pages of tokens as the store is asked for them."""
        self._source = source
        self._pack = pack
        self._page_tokens = page_tokens
        self._timeout = timeout
        self._counts = counts
        self._clock = clock
        self._budget = StoreBudget(timeout, clock)
        self._renewed_at = self._swept_at = clock()
        self._lookups: dict[str, _Lookup] = {}

    def __len__(self) -> int:
        """Returns the number of remembered lookups."""
        return len(self._lookups)

    def find(
        self,
        rid: str,
        salt: bytes,
        tokens: Sequence[int],
        device_pages: int,
        answered: Callable[[int], None] = _ignore,
    ) -> int:
        """Returns how many pages the store has of ``tokens`` after the first ``device_pages``.

        They are pinned. ``answered`` is called with the number of pages from the first on if the
        store was asked and answered. Never raises, since other ranks would wait for this one: an
        error is a miss.
        """
        now = self._clock()
        found = self._lookups.get(rid)
        if found is None or not self._answers(found, salt, tokens, device_pages, now):
            start_page = self._source.start_page(device_pages)
            fresh = self._ask(salt, tokens, start_page, now, answered)
            self.drop(rid)
            self._lookups[rid] = found = fresh
        found.used_at = now
        if found.page_count <= device_pages and found.match is not None:
            found.match.release()
            found.match = None
        return max(0, found.page_count - device_pages)

    def take(self, rid: str) -> Match | None:
        """Ends a request's lookup and returns its match, which the caller releases."""
        found = self._lookups.pop(rid, None)
        return None if found is None else found.match

    def drop(self, rid: str) -> None:
        """Ends a request's lookup and releases its pages."""
        match = self.take(rid)
        if match is not None:
            match.release()

    def drop_all(self) -> None:
        """Ends all lookups."""
        for rid in list(self._lookups):
            self.drop(rid)

    def drop_ended(self) -> None:
        """Ends lookups of ended sessions, and those that no request has asked for in a minute.

        Call it while no scheduling is under way. The client attaches to a store again only after
        the old session's pages are released.
        """
        now = self._clock()
        if now - self._swept_at < SWEEP_SECONDS:
            return
        self._swept_at = now
        for rid, each in list(self._lookups.items()):
            kept = KEPT_SECONDS if each.match is None else FORGOTTEN_SECONDS
            ended = each.match is not None and each.match.session_ended
            if ended or now - each.used_at > kept:
                self.drop(rid)

    def _answers(
        self, found: _Lookup, salt: bytes, tokens: Sequence[int], device_pages: int, now: float
    ) -> bool:
        """Returns whether a remembered lookup answers for a salt and tokens."""
        if found.salt != salt or found.tokens != tokens:
            return False
        if found.match is None and found.page_count > device_pages:
            return False
        start_page = self._source.start_page(device_pages)
        if found.start_page > start_page:
            # The device has lost pages since then, whose windows the match lacks.
            return False
        whole = found.page_count == len(tokens) // self._page_tokens
        # A request with more pages on the device needs fewer windows, and may find more.
        same = found.start_page == start_page and now - found.asked_at < KEPT_SECONDS
        return whole or same

    def _ask(
        self,
        salt: bytes,
        tokens: Sequence[int],
        start_page: int,
        now: float,
        answered: Callable[[int], None],
    ) -> _Lookup:
        if now - self._renewed_at >= RENEWAL_SECONDS:
            self._renewed_at = now
            self._budget = StoreBudget(self._timeout, self._clock)
        match = self._matched(salt, tokens, start_page, answered)
        self._note(match, len(tokens))
        return _Lookup(salt, tokens, start_page, match, match.page_count, now, now)

    def _matched(
        self,
        salt: bytes,
        tokens: Sequence[int],
        start_page: int,
        answered: Callable[[int], None],
    ) -> Match:
        match = Match()
        try:
            packed = self._pack(tokens)
            if packed:
                match = self._source.match(salt, packed + ONE_MORE, self._budget, start_page)
                if match.failure is None:
                    answered(match.page_count)
        except Exception:  # every error is a miss: none may reach the scheduler
            _logger.exception("lookup_failed")
        return match

    def _note(self, match: Match, token_count: int) -> None:
        outcome = "miss"
        if isinstance(match.failure, StoreTimedOut):
            outcome = "timeout"
        elif match.failure is not None:
            outcome = "unavailable"
        elif match.page_count:
            whole = token_count // self._page_tokens
            outcome = "full" if match.page_count == whole else "partial"
        self._counts[f"lookups_{outcome}"] += 1
        self._counts["asked_tokens"] += token_count
        self._counts["matched_tokens"] += match.page_count * self._page_tokens
