"""What the store has of one prompt: copied out as it begins, added to as it ends."""

from collections.abc import Sequence

from kvstore_client import Match, Namespace, Reservation
from kvstore_client.errors import PageRecycled, PoolExhausted, StoreError
from kvstore_transformers.page_copies import copy_in, copy_out, copy_source
from kvstore_transformers.prefix_cache import PrefixCache


class StoredPrefix:
    """A prompt's cached pages, held from :meth:`load` to :meth:`release`.

    They are copied, so nothing reads them afterwards; they are held since what is saved goes on
    from them: where one of them was found bad meanwhile, nothing that was computed on it is
    published. Failures of the store are kept in ``failure`` and raised nowhere. All calls
    together take at most one request's budget. One thread uses it.
    """

    def __init__(self, namespace: Namespace) -> None:
        """Asks nothing yet."""
        self._namespace = namespace
        self._page_tokens = namespace.layout.page_tokens
        self._budget = namespace.new_budget()
        self._match = Match()
        self.failure: StoreError | None = None

    def load(self, ids: Sequence[int], cache: PrefixCache) -> None:
        """Match a prompt's ``ids`` and copy what is cached into an empty cache with room for them.

        At least one token is left: its logits are what the first token comes from. Raises
        ``ValueError`` for tokens that are none.
        """
        self._match = self._namespace.match(ids, budget=self._budget)
        self.failure = self._match.failure
        try:
            found = self._copy(cache)
            self._match.require_current()
            if self._match.source is not None:
                self._match.source.release()
        except (PageRecycled, KeyError) as error:
            # What was copied may be another's: the prompt is computed from its beginning.
            self.failure = _failure(error)
            self.release()
            self._match = Match()
        except BaseException:
            self.release()  # nobody else can
            raise
        else:
            cache.begin(ids[:found])

    def save(self, ids: Sequence[int], cache: PrefixCache) -> int:
        """Publishes the whole pages of ``ids``, all of which the cache has, that were not matched.

        Gives the tokens in pages that are the store's from this on; fewer than there are where
        others were first, or where the store has no room for all.
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
        """Gives back what is held; nothing the second time."""
        self._match.release()

    def _copy(self, cache: PrefixCache) -> int:
        """Copies what was matched; gives the number of tokens."""
        match, layers = self._match, cache.token_layers
        copy_out(self._namespace, match.pages, layers)
        if match.source is None:
            return match.token_count
        copy_source(self._namespace, match.source, layers, match.token_count)
        return match.token_count + match.source.token_count

    def _reserve(self, first: int, count: int) -> Reservation | None:
        """Reserves so many pages, or half of them, and so on; None where the store gives none."""
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
    """Says what failed; a ``KeyError`` names an extent that is not mapped any more."""
    return error if isinstance(error, StoreError) else StoreError(f"extent {error} is not mapped")
