"""Saves: from the reservation of slots until a request's pages are in the store."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from kvstore_client import Acquired
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.scheduler.step_operations import (
    AcquirePages,
    InsertPages,
    ReleasePages,
    StepOperations,
)
from kvstore_vllm.scheduler.store_news import StoreNews
from kvstore_vllm.scheduler.tracked_requests import Save, Tracked
from kvstore_vllm.scheduler.transfer_jobs import Jobs
from kvstore_vllm.step_plan import BlockTransfer, runs_between

# vLLM's empty block, in place of blocks that a sliding window has passed.
NULL_BLOCK = 0

Blocks = Callable[[], Sequence[int]]


class SavePath:
    """Reserves slots, plans copies of blocks into them, and inserts the copied pages.

    A prompt's pages are saved while it is computed. Generated pages are saved when the request
    ends, so that no slots are reserved through a long decode. Slots are given back when every
    rank ended the copies into them. ``news`` hears which pages of requests the store
    has. One thread uses it.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        operations: StepOperations,
        jobs: Jobs,
        counts: "Counter[str]",
        *,
        usable: Callable[[], bool],
        news: StoreNews,
    ) -> None:
        self._settings = settings
        self._operations = operations
        self._jobs = jobs
        self._counts = counts
        self._usable = usable
        self._news = news
        # Ended requests whose blocks vLLM keeps until their copies ended.
        self.held: dict[str, Tracked] = {}

    # While a request runs.

    def scheduled(self, tracked: Tracked, ready_tokens: int, blocks: Blocks) -> list[BlockTransfer]:
        """Returns the copies to make after a step that computes up to ``ready_tokens``."""
        if not tracked.may_save:
            return []
        if tracked.save is None:
            whole = tracked.request.num_prompt_tokens // self._settings.page_tokens
            if not tracked.prompt_asked and whole > tracked.stored_pages:
                tracked.prompt_asked = True
                self._begin(tracked, whole, yielding=True)
            return []
        ready = ready_tokens // self._settings.page_tokens
        return self._copies(tracked, tracked.save, ready, blocks)

    def stop(self, tracked: Tracked) -> None:
        """Stops the current save, for example if the request's blocks are taken away.

        Copied pages are still inserted. A new save begins if the request runs again.
        """
        save, tracked.save = tracked.save, None
        tracked.prompt_asked = False
        if save is not None:
            save.stopped = True
            self._advance(tracked, save)

    def drop(self, tracked: Tracked) -> None:
        """Saves and inserts nothing more of a request, because its blocks may be wrong."""
        tracked.may_save = False
        if tracked.save is not None:
            tracked.save.dropped = True
        self.stop(tracked)

    # As it ends.

    def finished(self, tracked: Tracked, ready_tokens: int, block_ids: Sequence[int]) -> bool:
        """Ends a request; returns whether its blocks are held, because copies are left to make."""
        page_tokens = self._settings.page_tokens
        wanted = min(ready_tokens // page_tokens, len(block_ids))
        if not self._settings.save_output:
            wanted = min(wanted, tracked.request.num_prompt_tokens // page_tokens)
        if not tracked.may_save or tracked.open_loads:
            self.drop(tracked)
            return False
        tracked.held, tracked.wanted_pages = list(block_ids), wanted
        self._begin_last(tracked)
        if self._has_copied(tracked):
            self.stop(tracked)
            return False
        self.held[tracked.request.request_id] = tracked
        return True

    def plan_held(self) -> tuple[list[BlockTransfer], set[str]]:
        """Returns the copies of ended requests, and the requests whose blocks are free now."""
        copies: list[BlockTransfer] = []
        let_go: set[str] = set()
        for request_id, tracked in list(self.held.items()):
            self._begin_last(tracked)
            if tracked.save is not None:
                wanted = tracked.wanted_pages
                copies += self._copies(tracked, tracked.save, wanted, tracked.held_blocks)
            if self._has_copied(tracked):
                del self.held[request_id]
                let_go.add(request_id)
                self.stop(tracked)
        return copies, let_go

    def _begin_last(self, tracked: Tracked) -> None:
        """Begins, once, to save the missing pages of an ended request."""
        missing = tracked.may_save and tracked.wanted_pages > tracked.stored_pages
        if tracked.save is None and missing and not tracked.last_asked:
            tracked.last_asked = True
            self._begin(tracked, tracked.wanted_pages, yielding=False)

    def _has_copied(self, tracked: Tracked) -> bool:
        """Returns whether no more copies will be made of an ended request's blocks."""
        save = tracked.save
        if save is None:
            return True
        if save.acquired is None:
            return tracked.wanted_pages <= tracked.stored_pages
        if save.end_page < tracked.wanted_pages and not tracked.last_asked:
            return False
        return not save.open_jobs and save.planned_end >= min(save.end_page, tracked.wanted_pages)

    # The steps of a save.

    def _begin(self, tracked: Tracked, page_count: int, *, yielding: bool) -> None:
        if not self._usable():
            return
        save = tracked.save = Save()
        ids = tracked.request.all_token_ids[: page_count * self._settings.page_tokens]
        done = partial(self._acquired, tracked, save)
        self._operations.add(AcquirePages(tracked.key, ids, yielding, done))

    def _acquired(self, tracked: Tracked, save: Save, acquired: Acquired | None) -> None:
        reservation = None
        if acquired is not None:
            found = acquired.match.page_count
            tracked.stored_pages = max(tracked.stored_pages, found)
            if found and not save.dropped:
                self._news.has(tracked.request, tracked.key, found)
            reservation = acquired.reservation
        if acquired is None or reservation is None or save.stopped or not reservation.page_count:
            if acquired is not None:
                self._operations.add(ReleasePages(tracked.key, acquired))
            self._end(tracked, save)
            return
        save.acquired = acquired
        start = reservation.start_page
        save.planned_end = save.copied_end = save.inserted_end = start
        save.end_page = start + reservation.page_count

    def _copies(
        self, tracked: Tracked, save: Save, ready_pages: int, blocks: Blocks
    ) -> list[BlockTransfer]:
        start, end = save.planned_end, min(save.end_page, ready_pages)
        if save.acquired is None or save.stopped or start >= end:
            return []
        block_ids = blocks()[start:end]
        if len(block_ids) < end - start or NULL_BLOCK in block_ids:
            self.drop(tracked)
            return []
        reservation = save.acquired.reservation
        assert reservation is not None
        first = reservation.start_page
        runs = runs_between(reservation.pages.dated_runs, start - first, end - first)
        save.planned_end = end
        save.open_jobs += 1
        done = partial(self._copied, tracked, save, start, end)
        return [self._jobs.begin(tracked.request.request_id, block_ids, runs, done)]

    def _copied(self, tracked: Tracked, save: Save, start: int, end: int, ok: bool) -> None:  # noqa: FBT001
        save.open_jobs -= 1
        if ok and save.copied_end == start:
            save.copied_end = end
        else:
            save.stopped = True
            self._counts["saves_failed"] += 1
        self._advance(tracked, save)

    def _advance(self, tracked: Tracked, save: Save) -> None:
        """Inserts the copied pages, or ends a save that has nothing left to do."""
        if save.acquired is None or save.inserting:
            return
        start, end = save.inserted_end, save.copied_end
        if end > start and not save.dropped:
            save.inserting = True
            ids = tracked.request.all_token_ids[: end * self._settings.page_tokens]
            done = partial(self._inserted, tracked, save, end)
            self._operations.add(
                InsertPages(tracked.key, ids, save.acquired, start, end, tracked.hint, done)
            )
        elif not save.open_jobs and (save.stopped or save.inserted_end == save.end_page):
            self._operations.add(ReleasePages(tracked.key, save.acquired))
            save.acquired = None
            self._end(tracked, save)

    def _inserted(self, tracked: Tracked, save: Save, end: int, ok: bool) -> None:  # noqa: FBT001
        save.inserting = False
        if ok:
            page_tokens = self._settings.page_tokens
            self._counts["stored_tokens"] += (end - save.inserted_end) * page_tokens
            if not save.dropped:
                self._news.has(tracked.request, tracked.key, end)
            save.inserted_end = end
            tracked.stored_pages = max(tracked.stored_pages, end)
        else:
            save.stopped = save.dropped = True
            self._counts["inserts_failed"] += 1
        self._advance(tracked, save)

    def _end(self, tracked: Tracked, save: Save) -> None:
        if tracked.save is save:
            tracked.save = None
