"""A namespace that has a request's prefix at hand: the bound of what a cache can do here."""

from collections.abc import Sequence
from typing import Any

from kvstore_client import Acquired, Match, Namespace
from kvstore_client.errors import StoreUnavailable


class ReadyNamespace:
    """Answers an engine at once with what was matched before the request was made.

    The pages are the store's and used in place, as in a hit; but nothing is asked of the store
    while a request runs, nothing reserved, and nothing published: what follows the prefix is
    computed in the engine's own memory. So the engine does what no cache can spare it: it runs
    the rest of the prompt, and copies a page where a prefix ends within one.
    It stands where a ``Namespace`` does; everything else is the real one's.
    """

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._ready: dict[tuple[int, ...], Match] = {}
        self.prefill_tokens_per_second = 0.0

    def prepare(self, ids: Sequence[int], namespace: Namespace | None = None) -> int:
        """Matches a prompt now, also in another ``namespace`` of the same layout and client.

        Returns how many of its tokens are ready.
        """
        match = (namespace or self._namespace).match(ids, accept_next_token=True)
        self._ready.pop(tuple(ids), Match()).release()
        self._ready[tuple(ids)] = match
        return match.token_count + (match.source.token_count if match.source else 0)

    def acquire(self, tokens: Sequence[int], **terms: object) -> Acquired:
        """Returns what was prepared for these tokens; what was not is a miss."""
        del terms
        return Acquired(self._ready.pop(tuple(tokens), Match()))

    def reserve(self, **terms: object) -> None:
        """Refuses, as a store that is away."""
        del terms
        raise StoreUnavailable("nothing is reserved here")

    def peek(self, tokens: Sequence[int]) -> int:
        """Returns how many tokens are ready, without asking."""
        match = self._ready.get(tuple(tokens))
        return 0 if match is None else match.token_count

    def release(self) -> None:
        """Gives back what was prepared and not asked for."""
        while self._ready:
            self._ready.popitem()[1].release()

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - whatever the real one has
        return getattr(self._namespace, name)
