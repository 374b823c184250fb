"""One prompt's pages in the store: loaded when it begins, saved when it ends."""

from collections.abc import Sequence

from kvstore_client import Match, Namespace, Reservation
from kvstore_client.errors import PageRecycled, PoolExhausted, StoreError
from kvstore_transformers.page_copies import copy_in, copy_out, copy_source
from kvstore_transformers.prefix_cache import PrefixCache


class StoredPrefix:
    """A prompt's cached pages, held from :meth:`load` to :meth:`release`.

    The pages are copied once and not read again. They are held because saved pages continue them:
    if the store finds one corrupt meanwhile, nothing that was computed from it is published.
    Failures of the store are kept in ``failure`` and not raised. All calls together take at most
    one request's budget. One thread uses it.
    """

    def __init__(self, namespace: Namespace) -> None:
        """Makes no call yet."""
        self._namespace = namespace
        self._page_tokens = namespace.layout.page_tokens
        self._budget = namespace.new_budget()
        self._match = Match()
        self.failure: StoreError | None = None

    def load(self, ids: Sequence[int], cache: PrefixCache) -> None:
        """Matches a prompt's ``ids`` and copies the cached prefix into an empty cache.

        The cache must have room for all tokens. At least one token is left to compute, because
        the first output token comes from its logits. Raises ``ValueError`` for invalid tokens.
        """
        self._match = self._namespace.match(ids, budget=self._budget)
        self.failure = self._match.failure
        try:
            found = self._copy(cache)
            self._match.require_current()
            if self._match.source is not None:
                self._match.source.release()
        except (PageRecycled, KeyError) as error:
            # The copies may be of other pages, so the prompt is computed from its beginning.
            self.failure = _failure(error)
            self.release()
            self._match = Match()
        except BaseException:
            self.release()  # no caller can: the match is only known here
            raise
        else:
            cache.begin(ids[:found])

    def save(self, ids: Sequence[int], cache: PrefixCache) -> int:
        """Publishes the whole pages of ``ids`` that were not matched. The cache has all of them.

        Returns the number of tokens in the published pages. Pages are missing if another worker
        inserted them first, or if the store has no room.
        """
        first = self._match.page_count
        reservation = self._reserve(first, len(ids) // self._page_tokens - first)
        if reservation is None:
            return 0
        with reservation:
            end = first + reservation.page_count
            begin = first * self._page_tokens
            try:
                copy_in(self._namespace, reservation.pages, cache.token_layers, first)
                inserted = reservation.insert(
                    ids[begin : end * self._page_tokens],
                    position=begin,
                    base=self._match if first else None,
                )
            except (KeyError, StoreError) as error:
                self.failure = _failure(error)
                return 0
            return inserted.published_page_count * self._page_tokens

    def release(self) -> None:
        """Releases the matched pages. Can be repeated."""
        self._match.release()

    def _copy(self, cache: PrefixCache) -> int:
        """Copies the matched pages and the source; returns the number of tokens."""
        match, layers = self._match, cache.token_layers
        copy_out(self._namespace, match.pages, layers)
        if match.source is None:
            return match.token_count
        copy_source(self._namespace, match.source, layers, match.token_count)
        return match.token_count + match.source.token_count

    def _reserve(self, first: int, count: int) -> Reservation | None:
        """Reserves ``count`` pages, or half of them, and so on; None if no page has room."""
        while count > 0:
            try:
                return self._namespace.reserve(
                    start_page=first, page_count=count, budget=self._budget
                )
            except PoolExhausted as error:
                self.failure = error
                count //= 2
            except StoreError as error:
                self.failure = error
                break
        return None


def _failure(error: StoreError | KeyError) -> StoreError:
    """Returns the error of the store. A ``KeyError`` names an extent that is no longer mapped."""
    return error if isinstance(error, StoreError) else StoreError(f"extent {error} is not mapped")
