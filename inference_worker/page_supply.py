"""The pages of all requests that run: got from the store and from the private arena."""

from collections.abc import Sequence

import kvstore_client
from inference_worker.errors import ArenaExhaustedError
from inference_worker.page_pool import PagePool
from inference_worker.private_arena import PrivateArena
from inference_worker.request_run import RequestRun
from inference_worker.request_table import RequestTable
from inference_worker.scheduler import Admitted, NotAdmitted
from inference_worker.sequence_pages import SequencePages


class PageSupply:
    """What the scheduler asks for pages, over an engine's runs. One engine thread uses it."""

    def __init__(
        self,
        pool: PagePool,
        private: PrivateArena,
        namespace: kvstore_client.Namespace | None,
        table: RequestTable,
    ) -> None:
        """Look requests up in ``table``."""
        self._pool = pool
        self._private = private
        self._namespace = namespace
        self._table = table

    def admit(self, number: int) -> Admitted | NotAdmitted:
        """Match all ids of a request and have pages for them.

        Of the store's and, where it has too few, private ones; only where nothing else runs it
        is refused no page. A token that the store knows is said at once.
        """
        run = self._table.runs[number]
        try:
            pages = self._open(run)
        except Exception as error:  # noqa: BLE001 - it is this request's own
            self._table.fail(run, error)
            return NotAdmitted.ENDED
        if pages is None:
            return NotAdmitted.NO_ROOM
        self._table.opened(run, pages)
        if pages.next_token is not None:
            run.say(pages.next_token)
            reason = self._table.tell(run)
            if reason is not None:
                self._table.end(run, reason)
            if number not in self._table.runs:
                return NotAdmitted.ENDED
        return Admitted(len(run.ids), run.computed)

    def grow(self, wanted: Sequence[tuple[int, int]]) -> bool:
        """Have the store's pages for each request's tokens."""
        return all(self._pages(number).grow(tokens) for number, tokens in wanted)

    def grow_private(self, number: int, token_count: int) -> bool:
        """Have private pages for what a request lacks."""
        try:
            self._pages(number).grow_private(token_count)
        except ArenaExhaustedError:
            return False
        return True

    def give_way(self, number: int) -> None:
        """Put what is complete into the store, and release all."""
        self._table.runs[number].give_back(publish=True)

    def _open(self, run: RequestRun) -> SequencePages | None:
        request = run.request
        cached = request.cache_prefix and len(run.ids) >= request.min_cache_tokens
        pages = SequencePages(
            self._pool,
            self._private,
            self._namespace if cached and run.trusts_store else None,
            run.ids,
            longest=run.longest,
            accept_next_token=request.sampling.is_greedy,
        )
        try:
            pages.grow_private(len(run.ids))
        except ArenaExhaustedError:
            pages.close()
            if any(each.pages is not None for each in self._table.runs.values()):
                return None
            raise
        except BaseException:
            pages.close()
            raise
        return pages

    def _pages(self, number: int) -> SequencePages:
        pages = self._table.runs[number].pages
        assert pages is not None  # it runs
        return pages
