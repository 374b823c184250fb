"""The pages that servers have to store, counted from their requests."""

from collections.abc import Sequence

from engine_cases.answer import Answer
from engine_cases.case import Case
from engine_cases.prompts import Prompt
from engine_cases.store import Store
from kvstore_client.testing import wait_until

# Seconds until the pages of a request that was answered are stored.
SETTLING = 30.0


class StoredPages:
    """The distinct pages of requests and their answers on one store, which was empty before.

    SGLang keeps the KV of all tokens but an answer's last, in whole pages. Each of ``ranks``
    stores its own part of each page.
    """

    def __init__(self, store: Store, page_tokens: int, ranks: int = 1) -> None:
        self._store = store
        self._ranks = ranks
        self._page_tokens = page_tokens
        self._pages: set[int] = set()

    def add(self, prompts: Sequence[Prompt], answers: Sequence[Answer]) -> None:
        """Adds the pages of requests that ended."""
        for prompt, answer in zip(prompts, answers, strict=True):
            tokens = (*prompt.tokens, *answer.tokens[:-1])
            for end in range(self._page_tokens, len(tokens) + 1, self._page_tokens):
                self._pages.add(hash((prompt.salt, prompt.adapter, tokens[:end])))

    def wait(self, case: Case) -> None:
        """Waits until the store has them all, which takes a moment after the answers."""
        wanted = len(self._pages) * self._ranks
        wait_until(lambda: self._stored() >= wanted, SETTLING)
        found = self._stored()
        case.require(found >= wanted, f"{found} of {wanted} pages were stored")

    def _stored(self) -> int:
        return self._store.stats().counters.inserted_page_count
