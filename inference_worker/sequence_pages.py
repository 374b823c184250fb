"""The pages of one sequence while it runs: matched, reserved, or the engine's own."""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Final, Self

import kvstore_client
from inference_worker.block_table import BlockTable, PageRef
from inference_worker.page_pool import PagePool
from inference_worker.private_arena import PrivateArena
from kvstore_client.errors import StoreError

# Slots reserved beyond what is needed now, so that decoding asks the store once in as many pages.
RESERVE_AHEAD: Final = 4


class SequencePages:
    """Owns what a sequence holds, from the match to the release.

    Matched pages are used in place and never written. Behind them come slots reserved in the
    store or, from where the store cannot give any, slots of the private arena; those are not
    published, nor is what follows them. A failure of the store never reaches the caller.
    A context manager: at its end, on an exception too, the store's pages are released, the views
    of its memory dropped and the private slots given back.
    One engine thread uses it.
    """

    def __init__(
        self,
        pool: PagePool,
        private: PrivateArena,
        namespace: kvstore_client.Namespace | None,
        prompt_ids: Sequence[int],
    ) -> None:
        """Match the prompt and reserve the rest; without a namespace all pages are private.

        Raises ``ValueError`` for tokens that are none, and what the pool raises where the store's
        memory does not fit it; nothing is held then.
        """
        self._pool = pool
        self._private = private
        self._namespace = namespace
        self._page_tokens = pool.layout.page_tokens
        self._views: set[int] = set()
        self._private_pages: list[PageRef] = []
        self._acquired: kvstore_client.Acquired | None = None
        self._matched: list[PageRef] = []
        self._reserved: list[PageRef] = []
        self._inserted = 0
        self._publishing = False
        if namespace is not None:
            total = pool.layout.pages_for(len(prompt_ids)) + RESERVE_AHEAD
            self._acquired = namespace.acquire(prompt_ids, total_page_count=total)
            try:
                self._use(self._acquired)
            except BaseException:
                self.close()  # nobody else can
                raise
        self.table = BlockTable(self._page_tokens, [*self._matched, *self._reserved])

    @property
    def matched_tokens(self) -> int:
        """Tokens whose keys and values were there already: where computing starts."""
        return len(self._matched) * self._page_tokens

    @property
    def matched_pages(self) -> list[PageRef]:
        """The pages used in place."""
        return list(self._matched)

    @property
    def failure(self) -> StoreError | None:
        """Why the store gave nothing, where it failed."""
        return None if self._acquired is None else self._acquired.failure

    def ensure(self, token_count: int) -> None:
        """Have pages for ``token_count`` tokens.

        From the store while it gives some, then from the private arena. Raises
        ``ArenaExhaustedError`` where that has too few, which a sequence within the engine's
        longest never sees.
        """
        missing = self._pool.layout.pages_for(token_count) - len(self.table)
        if missing > 0 and not self._private_pages:
            missing -= self._grow(missing)
        if missing > 0:
            pages = self._private.allocate(missing)
            self._private_pages += pages
            self.table.append(*pages)

    def publish(self, ids: Sequence[int], computed: int) -> list[PageRef]:
        """Insert the pages that the first ``computed`` of ``ids`` fill, and were not inserted.

        The forward that wrote them must have returned. Gives those that are the store's from now
        on, which are never written again; where another worker was first its page is the store's,
        and ours stays ours.
        """
        if not self._publishing or self._acquired is None:
            return []
        reservation = self._acquired.reservation
        assert reservation is not None  # or nothing would be published
        first = len(self._matched) + self._inserted
        count = min(computed // self._page_tokens - first, len(self._reserved) - self._inserted)
        if count <= 0:
            return []
        tokens = list(ids[first * self._page_tokens : (first + count) * self._page_tokens])
        base = self._acquired.match if self._inserted == 0 and self._matched else None
        try:
            answer = reservation.insert(tokens, position=first * self._page_tokens, base=base)
        except StoreError:
            # What is reserved stays ours to compute on; the store just does not get it.
            self._publishing = False
            return []
        own = self._reserved[self._inserted : self._inserted + count]
        self._inserted += count
        named = {PageRef(page.extent_id, page.slot) for page in answer.pages}
        return [page for page in own if page in named]

    def _use(self, acquired: kvstore_client.Acquired) -> None:
        """Map what was acquired."""
        self._matched = self._map(acquired.match.pages)
        if acquired.reservation is not None:
            self._reserved = self._map(acquired.reservation.pages)
            self._publishing = True

    def _grow(self, missing: int) -> int:
        """Reserve at least ``missing`` pages more; give how many came."""
        reservation = None if self._acquired is None else self._acquired.reservation
        if reservation is None:
            return 0
        before = len(self._reserved)
        try:
            pages = reservation.grow(before + missing + RESERVE_AHEAD)
        except StoreError:
            return 0
        more = self._map(pages[before:])
        self._reserved += more
        self.table.append(*more)
        return len(more)

    def _map(self, pages: Iterable[kvstore_client.PageRef]) -> list[PageRef]:
        """Make the extents of the store's pages part of the pool, and name them there."""
        named = [PageRef(page.extent_id, page.slot) for page in pages]
        assert self._namespace is not None or not named  # only the store's pages come here
        for extent in {page.extent for page in named} - self._views:
            assert self._namespace is not None
            self._pool.add_extent(extent, self._namespace.extent_tensor(extent))
            self._views.add(extent)
        return named

    def close(self) -> None:
        """Give everything back; nothing the second time."""
        for extent in self._views:
            self._pool.remove_extent(extent)
        self._views.clear()
        self._private.release(self._private_pages)
        self._private_pages = []
        if self._acquired is not None:
            self._acquired.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
