"""The pages of all requests that run: got from the store and from the private arena."""

from collections.abc import Sequence
from typing import Final

import kvstore_client
from inference_worker.errors import ArenaExhaustedError
from inference_worker.page_growth import grow_together
from inference_worker.page_pool import PagePool
from inference_worker.private_arena import PrivateArena
from inference_worker.request_run import RequestRun
from inference_worker.request_table import RequestTable
from inference_worker.salted_namespaces import OPENING_SECONDS, SaltedNamespaces
from inference_worker.scheduler_supply import Admitted, Elsewhere, NotAdmitted
from inference_worker.sequence_pages import SequencePages

OPENING: Final = "a namespace that is being opened"


class PageSupply:
    """What the scheduler asks for pages, over an engine's requests. One engine thread uses it.

    A failure of one request fails that one, and is none here.
    """

    def __init__(
        self,
        pool: PagePool,
        private: PrivateArena,
        namespaces: SaltedNamespaces | None,
        table: RequestTable,
    ) -> None:
        """Look requests up in ``table``; without ``namespaces`` all pages are private."""
        self._pool = pool
        self._private = private
        self._namespaces = namespaces
        self._table = table

    def peek(self, number: int) -> int:
        """Ask the store what is cached; zero for a request that takes no part in it."""
        run = self._table.runs[number]
        namespace = self._namespace(run)
        return namespace.peek(run.ids) if namespace is not None and run.shares_cache else 0

    def admit(self, number: int, *, may_yield: bool) -> Admitted | Elsewhere | NotAdmitted:
        """Match all ids of a request and have pages for them.

        Of the store's and, where it has too few, private ones; where nothing else runs there is
        always room. A token that the store knows is said at once.
        """
        run = self._table.runs[number]
        try:
            namespace = self._namespace(run)
            if may_yield and namespace is not None and self._is_opening(run):
                return Elsewhere((OPENING, run.request.cache_salt), 0, OPENING_SECONDS)
            pages = self._open(run, namespace)
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
        """Have pages for each request's tokens: one call to the store where any lacks some."""
        pages = [(self._pages(number), tokens) for number, tokens in wanted]
        private = [each for each in pages if each[0].has_private]
        stored = [each for each in pages if not each[0].has_private]
        # Each has its pages afterwards, or none of them is sure to.
        return grow_together(stored) & all(self._allocate(*each) for each in private)

    def grow_private(self, number: int, token_count: int) -> bool:
        """Have private pages for what a request lacks."""
        return self._allocate(self._pages(number), token_count)

    def give_way(self, number: int) -> None:
        """Put what is complete into the store, and release all."""
        run = self._table.runs[number]
        run.generation.preemptions += 1
        try:
            run.give_back(publish=True)
        except Exception as error:  # noqa: BLE001 - it is this request's own
            self._table.fail(run, error)

    def _namespace(self, run: RequestRun) -> kvstore_client.Namespace | None:
        if self._namespaces is None or not run.uses_store:
            return None
        used = {each.request.cache_salt for each in self._table.runs.values()}
        return self._namespaces.find(run.request.cache_salt, used)

    def _is_opening(self, run: RequestRun) -> bool:
        return self._namespaces is not None and self._namespaces.is_opening(run.request.cache_salt)

    def _open(
        self, run: RequestRun, namespace: kvstore_client.Namespace | None
    ) -> SequencePages | None:
        pages = SequencePages(
            self._pool,
            self._private,
            namespace,
            run.ids,
            longest=run.longest,
            accept_next_token=run.request.sampling.is_greedy,
            shared=run.shares_cache,
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

    def _allocate(self, pages: SequencePages, token_count: int) -> bool:
        try:
            pages.grow_private(token_count)
        except ArenaExhaustedError:
            return False
        return True

    def _pages(self, number: int) -> SequencePages:
        pages = self._table.runs[number].pages
        assert pages is not None  # it runs
        return pages
