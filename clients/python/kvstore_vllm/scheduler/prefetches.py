"""Prefetches: pages of requests that wait, which the store loads from its slower tiers ahead."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Protocol

from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.store_threads import Answers

# Requests that arrive faster than the store answers are only looked up.
MOST_UNDER_WAY: Final = 32


class PrefetchSender(Protocol):
    """Sends a prefetch to a store, on a thread that may wait for the answer."""

    def prefetch(self, key: RequestKey, token_ids: Sequence[int]) -> int:
        """Returns the number of tokens that the store now loads; 0 if it fails."""


class Prefetches:
    """Begins the loads of requests whose lookups wait for a thread. One thread uses it.

    A lookup keeps its thread until the store has loaded the pages. So in a burst only the first
    requests' pages are loaded, and those of the others once it is their turn. A prefetch is
    answered at once, so all loads of the burst begin. ``offered`` returns whether the store has
    slower tiers.
    """

    def __init__(
        self,
        sender: PrefetchSender,
        answers: Answers,
        counts: "Counter[str]",
        *,
        lookup_threads: int,
        offered: Callable[[], bool],
    ) -> None:
        """``answers`` has a thread of its own, beside the ``lookup_threads`` of lookups."""
        self._sender = sender
        self._answers = answers
        self._counts = counts
        self._lookup_threads = lookup_threads
        self._offered = offered

    def before_lookup(self, key: RequestKey, token_ids: Sequence[int], under_way: int) -> None:
        """Begins to load a request's pages, if its lookup waits behind ``under_way`` others."""
        if under_way < self._lookup_threads or not self._offered():
            return
        self._answers.deliver()
        if self._answers.under_way < MOST_UNDER_WAY:
            self._answers.ask(partial(self._sender.prefetch, key, token_ids), self._answered)

    def close(self) -> None:
        """Waits for the calls under way, which have deadlines."""
        self._answers.close()

    def _answered(self, loading: int | None) -> None:
        self._counts["prefetched_tokens"] += loading or 0
