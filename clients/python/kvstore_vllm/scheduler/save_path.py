"""Saves: from slots for a request's pages until they are in the store."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from kvstore_client import Acquired
from kvstore_vllm.engine.settings import PlannerSettings
from kvstore_vllm.scheduler.answers import Answers
from kvstore_vllm.scheduler.jobs import Jobs
from kvstore_vllm.scheduler.requests import EngineRequest, Save, Tracked
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.transfer import Transfer, runs_between

# vLLM's block of nothing, which stands where a window has passed.
NULL_BLOCK = 0

Blocks = Callable[[], Sequence[int]]


class SavePath:
    """Reserves slots, has blocks copied into them, and inserts what was copied.

    A prompt's pages are saved while it is computed, what was generated as the request ends:
    nothing is reserved through a long decode. Slots are given back when every rank ended the
    copies into them. ``stored`` is told which pages of a request are in the store now. One
    thread uses it.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        work: StoreWork,
        answers: Answers,
        jobs: Jobs,
        counts: "Counter[str]",
        *,
        usable: Callable[[], bool],
        stored: Callable[[EngineRequest, int, int], None],
    ) -> None:
        self._settings = settings
        self._work = work
        self._answers = answers
        self._jobs = jobs
        self._counts = counts
        self._usable = usable
        self._stored = stored
        # Requests that ended and whose blocks vLLM keeps until they are let go.
        self.held: dict[str, Tracked] = {}

    # While a request runs.

    def scheduled(self, tracked: Tracked, ready_tokens: int, blocks: Blocks) -> list[Transfer]:
        """Returns what can be copied after a step that computes ``ready_tokens`` in all."""
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
        """Saves no more of what runs now, such as where its blocks are taken away.

        What was copied is inserted still. Saving begins anew where the request runs again.
        """
        save, tracked.save = tracked.save, None
        tracked.prompt_asked = False
        if save is not None:
            save.stopped = True
            self._advance(tracked, save)

    def drop(self, tracked: Tracked) -> None:
        """Saves no more of a request, and insert nothing more: its blocks may be wrong."""
        tracked.may_save = False
        if tracked.save is not None:
            tracked.save.dropped = True
        self.stop(tracked)

    # As it ends.

    def finished(self, tracked: Tracked, ready_tokens: int, block_ids: Sequence[int]) -> bool:
        """Returns whether blocks are still to be read: then they are held until let go."""
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

    def plan_held(self) -> tuple[list[Transfer], set[str]]:
        """Returns what is to be copied of requests that ended, and those to be let go."""
        copies: list[Transfer] = []
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
        """Asks, once, for what is missing of a request that ended."""
        missing = tracked.may_save and tracked.wanted_pages > tracked.stored_pages
        if tracked.save is None and missing and not tracked.last_asked:
            tracked.last_asked = True
            self._begin(tracked, tracked.wanted_pages, yielding=False)

    def _has_copied(self, tracked: Tracked) -> bool:
        """Returns whether no block of a request that ended will be read any more."""
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
        self._answers.ask(
            partial(self._work.acquire, tracked.key, ids, yielding=yielding),
            partial(self._acquired, tracked, save),
        )

    def _acquired(self, tracked: Tracked, save: Save, acquired: Acquired | None) -> None:
        reservation = None
        if acquired is not None:
            tracked.stored_pages = max(tracked.stored_pages, acquired.match.page_count)
            reservation = acquired.reservation
        if acquired is None or reservation is None or save.stopped or not reservation.page_count:
            if acquired is not None:
                acquired.release()
            self._end(tracked, save)
            return
        save.acquired = acquired
        start = reservation.start_page
        save.planned_end = save.copied_end = save.inserted_end = start
        save.end_page = start + reservation.page_count

    def _copies(
        self, tracked: Tracked, save: Save, ready_pages: int, blocks: Blocks
    ) -> list[Transfer]:
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
        """Inserts what was copied, or end a save of which nothing is left to do."""
        if save.acquired is None or save.inserting:
            return
        start, end = save.inserted_end, save.copied_end
        if end > start and not save.dropped:
            save.inserting = True
            ids = tracked.request.all_token_ids[: end * self._settings.page_tokens]
            self._answers.ask(
                partial(self._work.insert, tracked.key, ids, save.acquired, start, end),
                partial(self._inserted, tracked, save, end),
            )
        elif not save.open_jobs and (save.stopped or save.inserted_end == save.end_page):
            save.acquired.release()
            self._end(tracked, save)

    def _inserted(self, tracked: Tracked, save: Save, end: int, ok: bool | None) -> None:  # noqa: FBT001
        save.inserting = False
        if ok:
            page_tokens = self._settings.page_tokens
            self._counts["stored_tokens"] += (end - save.inserted_end) * page_tokens
            self._stored(tracked.request, save.inserted_end, end)
            save.inserted_end = end
            tracked.stored_pages = max(tracked.stored_pages, end)
        else:
            save.stopped = save.dropped = True
            self._counts["inserts_failed"] += 1
        self._advance(tracked, save)

    def _end(self, tracked: Tracked, save: Save) -> None:
        if tracked.save is save:
            tracked.save = None
