"""Computes prompts before anybody asks, and pins them at the store."""

import time
from dataclasses import dataclass
from secrets import token_hex
from typing import Final

from inference_worker.commands.local_worker import LocalWorker
from inference_worker.commands.warm_prompts import WarmPrompt
from inference_worker.errors import RequestTooLongError
from kvstore_client import Admin
from kvstore_client.errors import IdReused, PrefixNotCached, StoreError

# Of a pin that is there for two calls: if this process dies between them it ends by itself.
BESIDE_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """What came of one prompt; ``failure`` says why it is not pinned whole, or is None.

    ``computed_tokens`` are positions that the model ran. Pins are of whole pages.
    """

    line: int
    name: str
    tokens: int
    computed_tokens: int
    pinned_tokens: int
    seconds: float
    failure: str | None


class Warmer:
    """Warms one store with one worker."""

    def __init__(
        self, worker: LocalWorker, admin: Admin, namespace_id: bytes, page_tokens: int
    ) -> None:
        """Takes a worker whose namespace is open, and whoever may pin there."""
        self._worker = worker
        self._admin = admin
        self._namespace_id = namespace_id
        self._page_tokens = page_tokens

    def warm(self, prompt: WarmPrompt, *, ttl: float | None = None) -> Warmed:
        """Computes what is not cached of a prompt and pin its whole pages, for ``ttl`` seconds.

        Where all is cached nothing is computed, and the pin is renewed.
        """
        begin = time.perf_counter()
        computed = pinned = 0
        whole = len(prompt.ids) // self._page_tokens * self._page_tokens
        failure = None if whole else f"shorter than a page of {self._page_tokens} tokens"
        if whole:
            try:
                computed = self._compute(prompt.ids, whole)
                pinned = self._pin(prompt, ttl)
            except (RequestTooLongError, StoreError, ValueError) as error:
                failure = str(error)
        return Warmed(
            line=prompt.line,
            name=prompt.name,
            tokens=len(prompt.ids),
            computed_tokens=computed,
            pinned_tokens=pinned,
            seconds=time.perf_counter() - begin,
            failure=failure,
        )

    def _compute(self, ids: list[int], whole: int) -> int:
        """Have all whole pages of a prompt cached; returns the positions that were computed."""
        namespace = self._worker.namespace
        assert namespace is not None  # it is open
        # A match leaves the last token to compute, and so does its count.
        if namespace.peek(ids) >= min(whole, len(ids) - 1):
            return 0
        return self._worker.engine.generate(ids, 1).computed_tokens

    def _pin(self, prompt: WarmPrompt, ttl: float | None) -> int:
        """Pin or renew; a pin of this name that holds something else, or less, is replaced.

        Only once all of the prompt is held by another name, so that a failure leaves what was.
        """
        try:
            return self._ask(prompt.name, prompt, ttl)
        except (IdReused, PrefixNotCached):
            beside = f"warm-{token_hex(8)}"
            self._ask(beside, prompt, BESIDE_SECONDS)
            try:
                self._admin.unpin_prefix(self._namespace_id, prompt.name)
                return self._ask(prompt.name, prompt, ttl)
            finally:
                self._admin.unpin_prefix(self._namespace_id, beside)

    def _ask(self, name: str, prompt: WarmPrompt, ttl: float | None) -> int:
        answer = self._admin.pin_prefix(
            self._namespace_id, name, prompt.ids, ttl=ttl, require_all=True
        )
        return int(answer.pinned_token_count)
