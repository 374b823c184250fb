"""What a sequence computed on reserved pages, on its way into the store."""

from collections.abc import Sequence

import kvstore_client
from inference_worker.pages.ref import PageRef
from kvstore import tracing
from kvstore_client.errors import StoreError


class PagePublisher:
    """Inserts a sequence's reserved pages in order, each once.

    What was inserted is never written again, so a partial page is inserted when nothing comes
    behind it any more. A failure of the store ends the publishing and never reaches the caller:
    what is reserved can be computed on, the store just does not get it.
    One engine thread uses it.
    """

    def __init__(
        self, match: kvstore_client.Match, reservation: kvstore_client.Reservation, page_tokens: int
    ) -> None:
        """Takes a reservation for the pages behind a match, both of which the caller holds."""
        self._match = match
        self._reservation = reservation
        self._page_tokens = page_tokens
        self._inserted = 0
        self._failed = False

    def publish(self, ids: Sequence[int], end: int, next_token: int | None = None) -> list[PageRef]:
        """Insert the pages of the first ``end`` of ``ids`` that were not inserted and are reserved.

        The forward that wrote them must have returned. ``end`` is a page's end, or that of all
        that is ever computed. ``next_token`` is the argmax of what follows it.
        Gives the pages that are the store's from now on; where another worker was first, or has a
        fuller page, its page is the store's, and ours stays ours.
        """
        start, count = self._reservation.start_page, self._reservation.page_count
        first = start + self._inserted
        last = min(-(-end // self._page_tokens), start + count)
        if self._failed or last <= first:
            return []
        reached = min(end, last * self._page_tokens)
        base = self._match if first == start > 0 else None
        answer = self._insert(
            ids, first, reached, base=base, next_token=next_token if reached == end else None
        )
        if answer is None:
            return []
        own = self._reservation.pages[self._inserted : last - start]
        self._inserted = last - start
        named = set(answer.pages)
        return [PageRef(page.extent_id, page.slot) for page in own if page in named]

    def store_next_token(self, ids: Sequence[int], end: int, next_token: int) -> None:
        """Stores the argmax of what follows the first ``end`` of ``ids``, which were inserted.

        Nothing happens where their last page was not inserted here.
        """
        page = (end - 1) // self._page_tokens
        start = self._reservation.start_page
        if start <= page < start + self._inserted and not self._failed:
            self._insert(ids, page, end, base=None, next_token=next_token)

    def _insert(
        self,
        ids: Sequence[int],
        first_page: int,
        end: int,
        *,
        base: kvstore_client.Match | None,
        next_token: int | None,
    ) -> kvstore_client.Inserted | None:
        position = first_page * self._page_tokens
        try:
            with tracing.span("save", tokens=end - position):
                return self._reservation.insert(
                    list(ids[position:end]), position=position, base=base, next_token=next_token
                )
        except StoreError:
            self._failed = True
            return None
