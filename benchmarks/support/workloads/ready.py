"""A namespace with a request's prefix already matched: the bound for any cache here."""

from collections.abc import Sequence
from typing import Any

from kvstore_client import Acquired, Match, Namespace
from kvstore_client.errors import StoreUnavailable


class ReadyNamespace:
    """Answers an engine at once with the match that was made before the request.

    The pages are the store's and used in place, as in a hit. But a request calls nothing of the
    store, and reserves and publishes nothing. Tokens after the prefix are computed in the engine's
    own memory. So the engine does only what no cache can avoid: it runs the rest of the prompt, and
    copies a page if a prefix ends within one.

    It replaces a ``Namespace``. All other calls go to the real one.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._ready: dict[tuple[int, ...], Match] = {}
        self.prefill_tokens_per_second = 0.0

    def prepare(self, ids: Sequence[int], namespace: Namespace | None = None) -> int:
        """Matches a prompt, maybe in another ``namespace``. Returns how many tokens are ready."""
        match = (namespace or self._namespace).match(ids, accept_next_token=True)
        self._ready.pop(tuple(ids), Match()).release()
        self._ready[tuple(ids)] = match
        return match.token_count + (match.source.token_count if match.source else 0)

    def acquire(self, tokens: Sequence[int], **terms: object) -> Acquired:
        """Returns the prepared match for these tokens. Without one it is a miss."""
        del terms
        return Acquired(self._ready.pop(tuple(tokens), Match()))

    def reserve(self, **terms: object) -> None:
        """Refuses, like a store that is unavailable."""
        del terms
        raise StoreUnavailable("nothing is reserved here")

    def peek(self, tokens: Sequence[int]) -> int:
        """Returns the number of ready tokens without a call."""
        match = self._ready.get(tuple(tokens))
        return 0 if match is None else match.token_count

    def release(self) -> None:
        """Releases the prepared matches that were not used."""
        while self._ready:
            self._ready.popitem()[1].release()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        return getattr(self._namespace, name)
