"""The pages of one running sequence: matched, reserved, private, and published."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import NamedTuple, Self, TypeAlias

import kvstore_client
from inference_worker.errors import LayoutMismatchError
from inference_worker.pages.acquisition import (
    RESERVE_AHEAD,
    acquire_pages,
    grow_together,
    is_worth_copying,
)
from inference_worker.pages.block_table import BlockTable
from inference_worker.pages.layout import PageRef
from inference_worker.pages.pool import PagePool
from inference_worker.pages.private_arena import PrivateArena
from kvstore import tracing
from kvstore_client.errors import StoreError

# Returns the step for operations in a namespace.
StepOf: TypeAlias = Callable[[kvstore_client.Namespace], kvstore_client.StoreStep]


class _PlannedInsert(NamedTuple):
    """An insert of a sequence's next pages, through the one before ``last_page``."""

    tokens: list[int]
    position: int
    base: kvstore_client.Match | None
    next_token: int | None
    last_page: int

    def insert(
        self, reservation: kvstore_client.Reservation
    ) -> Callable[[], kvstore_client.Inserted]:
        """Returns the call that makes it."""
        return partial(
            reservation.insert,
            self.tokens,
            position=self.position,
            base=self.base,
            next_token=self.next_token,
        )

    def add_to(
        self, step: kvstore_client.StoreStep, reservation: kvstore_client.Reservation
    ) -> kvstore_client.StepOutcome[kvstore_client.Inserted]:
        """Adds it to a step."""
        return step.insert(
            reservation,
            self.tokens,
            position=self.position,
            base=self.base,
            next_token=self.next_token,
        )


class PagePublisher:
    """Inserts a sequence's reserved pages in order, each once.

    An inserted page is never written again, so a partial page is inserted only once nothing follows
    it. A failure of the store ends the publishing and never reaches the caller: the sequence
    computes on, and the store misses its pages. One engine thread uses it.
    """

    def __init__(
        self, match: kvstore_client.Match, reservation: kvstore_client.Reservation, page_tokens: int
    ) -> None:
        """Takes a reservation for the pages after a match; the caller holds both."""
        self._match = match
        self._reservation = reservation
        self._page_tokens = page_tokens
        self._inserted = 0
        self._failed = False

    def publish(self, ids: Sequence[int], end: int, next_token: int | None = None) -> list[PageRef]:
        """Inserts the reserved pages of the first ``end`` of ``ids`` that were not inserted yet.

        The forward that wrote them must have returned. ``end`` is the end of a page, or of the
        whole sequence. ``next_token`` is the argmax after it. Returns the pages that the store now
        owns. If another worker was first, or has a fuller page, the store keeps that worker's page
        and ours is not returned.
        """
        planned = self._plan(ids, end, next_token)
        if planned is None:
            return []
        with tracing.span("save", tokens=len(planned.tokens)):
            answer = self._answer(planned.insert(self._reservation))
        return self._published(planned, answer)

    def add_to(
        self,
        step: kvstore_client.StoreStep,
        ids: Sequence[int],
        end: int,
        next_token: int | None = None,
    ) -> Callable[[], list[PageRef]] | None:
        """Adds what :meth:`publish` inserts to a step; returns None if that is nothing.

        Otherwise returns a function that gives the pages once the step ran.
        """
        planned = self._plan(ids, end, next_token)
        if planned is None:
            return None
        outcome = planned.add_to(step, self._reservation)
        return lambda: self._published(planned, self._answer(outcome.result))

    def _plan(
        self, ids: Sequence[int], end: int, next_token: int | None
    ) -> "_PlannedInsert | None":
        start, count = self._reservation.start_page, self._reservation.page_count
        first = start + self._inserted
        last = min(-(-end // self._page_tokens), start + count)
        if self._failed or last <= first:
            return None
        reached = min(end, last * self._page_tokens)
        position = first * self._page_tokens
        return _PlannedInsert(
            list(ids[position:reached]),
            position,
            self._match if first == start > 0 else None,
            next_token if reached == end else None,
            last,
        )

    def _published(
        self, planned: "_PlannedInsert", answer: kvstore_client.Inserted | None
    ) -> list[PageRef]:
        """Notes an insert, and returns the pages of it that the store now owns."""
        if answer is None:
            return []
        last = planned.last_page - self._reservation.start_page
        own = self._reservation.pages[self._inserted : last]
        self._inserted = last
        named = set(answer.pages)
        return [PageRef(page.extent_id, page.slot) for page in own if page in named]

    def store_next_token(self, ids: Sequence[int], end: int, next_token: int) -> None:
        """Stores the argmax after the first ``end`` of ``ids``, which were inserted.

        Does nothing if their last page was not inserted here.
        """
        page = (end - 1) // self._page_tokens
        start = self._reservation.start_page
        if start <= page < start + self._inserted and not self._failed:
            position = page * self._page_tokens
            planned = _PlannedInsert(list(ids[position:end]), position, None, next_token, page + 1)
            with tracing.span("save", tokens=len(planned.tokens)):
                self._answer(planned.insert(self._reservation))

    def _answer(
        self, insert: Callable[[], kvstore_client.Inserted]
    ) -> kvstore_client.Inserted | None:
        """Returns the answer to an insert; None if the store failed, which ends the publishing."""
        try:
            return insert()
        except StoreError:
            self._failed = True
            return None


class SequencePages:
    """Owns what a sequence holds, from the match to the release.

    Matched pages are used in place and never written. The store may know a page that begins with
    the next tokens and then differs. This source is copied before anything is computed, or released
    at once if copying is not worth it. Slots reserved in the store follow. If the store cannot give
    any, slots of the private arena follow instead; neither those nor any page after them are
    published. A prompt that does not fit gets the pages of a few tries by halves, and does not ask
    again. All calls of a sequence share one time budget.

    A failure of the store never reaches the caller. The same holds if its memory cannot be used
    here, for example because it is on another device. A context manager: at its end, also on an
    exception, it releases the store's pages, drops the views of its memory and releases the private
    slots. One engine thread uses it.
    """

    def __init__(
        self,
        pool: PagePool,
        private: PrivateArena,
        namespace: kvstore_client.Namespace | None,
        prompt_ids: Sequence[int],
        *,
        longest: int,
        accept_next_token: bool = False,
        shared: bool = True,
        yield_idle: float | None = None,
    ) -> None:
        """Matches the prompt and reserves the rest; without a namespace all pages are private.

        ``longest`` is the most tokens that the sequence can have in pages: no slot is reserved
        beyond. With ``accept_next_token`` all of the prompt may be matched, otherwise all but one
        token. If it is not ``shared``, nothing is matched or published, and the store only gives
        slots. With ``yield_idle``, nothing is held if another worker computes more of the prompt
        than is cached and made progress within so many seconds; :attr:`in_flight` then describes
        it. Raises ``ValueError`` for invalid tokens; nothing is held then.
        """
        self._pool = pool
        self._private = private
        self._namespace = namespace
        # For all calls of the sequence: once it is spent, the store is not asked any more.
        self._budget = None if namespace is None else namespace.new_budget()
        self._page_limit = pool.layout.pages_for(longest)
        self._views: set[int] = set()
        self._private_pages: list[PageRef] = []
        self._acquired: kvstore_client.Acquired | None = None
        self._matched: list[PageRef] = []
        self._source: kvstore_client.Source | None = None
        self._publisher: PagePublisher | None = None
        self._unfit: LayoutMismatchError | None = None
        self.in_flight: kvstore_client.InFlight | None = None
        self._shared = shared
        self._grows = True
        self.table = BlockTable(pool.layout.page_tokens)
        if namespace is not None and self._budget is not None:
            self._acquired, self._grows, self.in_flight = acquire_pages(
                namespace,
                prompt_ids,
                page_count=pool.layout.pages_for(len(prompt_ids)),
                page_limit=self._page_limit,
                accept_next_token=accept_next_token,
                shared=shared,
                yield_idle=yield_idle,
                budget=self._budget,
            )
            try:
                self._use(self._acquired)
            except LayoutMismatchError as error:
                self._go_on_without(error)
            except BaseException:
                self.close()  # the caller has no object to close
                raise
        self.source_page = None if self._source is None else _place(self._source.page)
        self.copied_tokens = 0 if self._source is None else self._source.token_count

    @property
    def matched_tokens(self) -> int:
        """Tokens in pages that are used in place."""
        return len(self._matched) * self._pool.layout.page_tokens

    @property
    def loaded_tokens(self) -> tuple[int, int]:
        """The matched tokens that the store loaded for this: from disk, and from remote."""
        if self._acquired is None:
            return 0, 0
        disk, remote = self._acquired.match.loaded_pages
        page_tokens = self._pool.layout.page_tokens
        return disk * page_tokens, remote * page_tokens

    @property
    def matched_pages(self) -> list[PageRef]:
        """The pages used in place."""
        return list(self._matched)

    @property
    def next_token(self) -> int | None:
        """The best token after the prompt, if the store knows it: then nothing has to run."""
        return None if self._acquired is None else self._acquired.match.next_token

    @property
    def failure(self) -> StoreError | LayoutMismatchError | None:
        """Why the store gave nothing, if it failed or its memory does not fit."""
        return self._unfit if self._acquired is None else self._acquired.failure

    @property
    def store_seconds(self) -> float:
        """Seconds that the sequence waited for the store."""
        return 0.0 if self._budget is None else self._budget.spent_seconds

    def ensure(self, token_count: int) -> None:
        """Acquires pages for ``token_count`` tokens, and copies the source into the first of them.

        Pages come from the store while it has some, then from the private arena. Raises
        ``ArenaExhaustedError`` if that has too few, which cannot happen for a sequence within the
        engine's longest, and ``PageRecycled`` if the source was recycled before its copy was
        complete.
        """
        if not self.grow(token_count):
            self.grow_private(token_count)
        self._copy_source()

    def grow(self, token_count: int) -> bool:
        """Acquires the store's pages for ``token_count`` tokens; returns if none is missing."""
        return grow_together([(self, token_count)])

    @property
    def reservation(self) -> kvstore_client.Reservation | None:
        """The reservation that can grow; None once there are private pages."""
        if self._acquired is None or self._private_pages or not self._grows:
            return None
        if self._budget is None or self._budget.left <= 0:
            return None
        return self._acquired.reservation

    @property
    def has_private(self) -> bool:
        """True if some pages are private; then all later pages are."""
        return bool(self._private_pages)

    def lacking(self, token_count: int) -> int:
        """Counts the pages that are missing for ``token_count`` tokens."""
        return max(self._pool.layout.pages_for(token_count) - len(self.table), 0)

    def ahead(self, token_count: int) -> int:
        """Counts the pages to ask for: some ahead, so that the store is asked less often."""
        missing = self._pool.layout.pages_for(token_count) + RESERVE_AHEAD - len(self.table)
        most = self._page_limit - len(self.table)
        return max(self.lacking(token_count), min(missing, most), 0)

    def take_grown(self) -> None:
        """Adds the new pages of the reservation to the table.

        If their memory cannot be used here, the sequence neither grows nor publishes any more.
        """
        assert self._acquired is not None  # only a reservation that has grown calls this
        assert self._acquired.reservation is not None
        had = len(self.table) - len(self._matched)
        try:
            self.table.append(*self._map(self._acquired.reservation.pages[had:]))
        except (LayoutMismatchError, KeyError):
            self._grows = False
            self._publisher = None

    def grow_private(self, token_count: int) -> None:
        """Allocates private pages for what is missing of ``token_count`` tokens.

        Raises ``ArenaExhaustedError``, and allocates none then.
        """
        missing = self.lacking(token_count)
        if missing > 0:
            pages = self._private.allocate(missing)
            self._private_pages += pages
            self.table.append(*pages)

    def require_current(self) -> None:
        """Raises ``PageRecycled`` if the store, by a bug, gave one of its pages to others.

        Must be called after the device's work on the pages is done. Everything computed since the
        last call is then invalid, and must not be published.
        """
        if self._acquired is not None:
            self._acquired.require_current(wait=False)

    def publish(
        self, ids: Sequence[int], computed: int, next_token: int | None = None
    ) -> list[PageRef]:
        """Inserts the full pages of the first ``computed`` of ``ids`` that were not inserted yet.

        ``next_token`` is the argmax after them, and is stored if a page ends there. Returns the
        pages that the store now owns, as ``PagePublisher.publish``.
        """
        if self._publisher is None:
            return []
        return self._publisher.publish(ids, *self._whole_pages(computed, next_token))

    def add_to(
        self, step_of: StepOf, ids: Sequence[int], computed: int, next_token: int | None = None
    ) -> Callable[[], list[PageRef]] | None:
        """Adds what :meth:`publish` inserts to a step; returns None if that is nothing.

        ``step_of`` returns the step of a namespace. Otherwise returns a function that gives the
        pages once the step ran.
        """
        if self._publisher is None or self._namespace is None:
            return None
        whole = self._whole_pages(computed, next_token)
        return self._publisher.add_to(step_of(self._namespace), ids, *whole)

    def _whole_pages(self, computed: int, next_token: int | None) -> tuple[int, int | None]:
        """Returns the end of the full pages, and the token after them if it is known."""
        page_tokens = self._pool.layout.page_tokens
        if computed % page_tokens:
            return computed // page_tokens * page_tokens, None
        return computed, next_token

    def finish(
        self, ids: Sequence[int], computed: int, next_tokens: dict[int, int]
    ) -> list[PageRef]:
        """Inserts the rest of the first ``computed`` of ``ids``, including a partial page.

        ``next_tokens`` are argmaxes by the number of tokens before them. The whole last page was
        computed. Nothing can be written or published afterwards.
        """
        if self._publisher is None:
            return []
        rest = dict(next_tokens)
        published = self._publisher.publish(ids, computed, rest.get(computed))
        if published:
            rest.pop(computed, None)
        for end, token in rest.items():
            self._publisher.store_next_token(ids, end, token)
        return published

    def _go_on_without(self, error: LayoutMismatchError) -> None:
        """Releases memory that does not fit; all pages are private then."""
        self.close()
        self._acquired = None
        self._unfit = error
        self._matched = []
        self._publisher = None
        self.table = BlockTable(self._pool.layout.page_tokens)

    def _use(self, acquired: kvstore_client.Acquired) -> None:
        """Maps the acquired pages."""
        self._matched = self._map(acquired.match.pages)
        self.table.append(*self._matched)
        if acquired.reservation is not None:
            self.table.append(*self._map(acquired.reservation.pages))
            if self._shared:
                self._publisher = PagePublisher(
                    acquired.match, acquired.reservation, self._pool.layout.page_tokens
                )
        if acquired.match.source is None:
            return
        if not is_worth_copying(acquired.match):
            acquired.match.release()  # the match holds only the source
            return
        try:
            self._map([acquired.match.source.page])
        except KeyError:  # not mapped here: compute its tokens instead
            acquired.match.source.release()
        else:
            self._source = acquired.match.source

    def _copy_source(self) -> None:
        """Copies the source, once, into the first page that is this sequence's own."""
        if self._source is not None:
            self._pool.copy_page(_place(self._source.page), self.table[len(self._matched)])
            # The check waits for the device, so the copy is complete.
            self._source.require_current()
            self._source.release()
            self._source = None

    def _map(self, pages: Iterable[kvstore_client.PageRef]) -> list[PageRef]:
        """Adds the extents of the store's pages to the pool, and returns the pages' names there."""
        named = [_place(page) for page in pages]
        assert self._namespace is not None or not named  # only the store's pages are mapped
        for extent in {page.extent for page in named} - self._views:
            assert self._namespace is not None
            self._pool.use_extent(extent, self._namespace.extent_tensor(extent))
            self._views.add(extent)
        return named

    def close(self) -> None:
        """Releases everything; does nothing the second time."""
        for extent in self._views:
            self._pool.leave_extent(extent)
        self._views.clear()
        self._private.release(self._private_pages)
        self._private_pages = []
        self._source = None
        if self._acquired is not None:
            self._acquired.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _place(page: kvstore_client.PageRef) -> PageRef:
    """Returns the pool's name of a page of the store."""
    return PageRef(page.extent_id, page.slot)
