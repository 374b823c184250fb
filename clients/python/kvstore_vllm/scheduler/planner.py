"""The connector's half in vLLM's scheduler: what is looked up, loaded and saved, and when."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from kvstore_vllm.engine.settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.answers import Answers
from kvstore_vllm.scheduler.jobs import Jobs
from kvstore_vllm.scheduler.load_path import LoadPath
from kvstore_vllm.scheduler.requests import EngineRequest, Tracked
from kvstore_vllm.scheduler.save_path import SavePath
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.transfer import StepPlan, WorkerReport

# Of a step that computes nothing because all requests wait for the store, in seconds.
IDLE_WAIT = 0.001


def _tell_nobody(request: EngineRequest, start_page: int, end_page: int) -> None:
    del request, start_page, end_page


class TransferPlanner:
    """Requests from their arrival to their end. One thread, the scheduler's, uses it.

    No call waits for the store: threads ask it, and each call here begins by taking the
    answers that came. ``usable`` tells whether the store answers and every rank reaches it;
    without it all is a miss at once, unless ``joining`` tells that ranks are about to reach it:
    then a request waits to be looked up. ``blocks_of`` gives a request's blocks, ``stored`` is
    told which pages of one are in the store now. Whatever becomes of a request, what the store
    handed out is given back as soon as nobody reads or writes it.
    Knows nothing of vLLM's own types.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        work: StoreWork,
        answers: Answers,
        *,
        usable: Callable[[], bool],
        joining: Callable[[], bool] = lambda: False,
        blocks_of: Callable[[str], Sequence[int]],
        stored: Callable[[EngineRequest, int, int], None] = _tell_nobody,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._settings = settings
        self._answers = answers
        self._blocks_of = blocks_of
        self._tracked: dict[str, Tracked] = {}
        self._jobs = Jobs(settings.rank_count)
        parts = settings, work, answers, self._jobs, self.counts
        self._loads = LoadPath(*parts, usable=usable, joining=joining, clock=clock)
        self._saves = SavePath(*parts, usable=usable, stored=stored)

    @property
    def holds_blocks(self) -> bool:
        """Whether ended requests' blocks are held and about to be let go."""
        return bool(self._saves.held)

    @property
    def is_idle(self) -> bool:
        """Whether no rank has anything to end."""
        return not self._jobs

    @property
    def awaits_answers(self) -> bool:
        """Whether answers are to come, with which something may have to be given back."""
        return bool(self._answers.under_way)

    def arrived(self, request: EngineRequest, key: RequestKey | None) -> None:
        """Begins to look a request up; without a key nothing of it is looked up or saved."""
        if key is None:
            return
        tracked = Tracked(request, key, may_load=key.reads)
        self._tracked[request.request_id] = tracked
        if tracked.may_load:
            self._loads.look_up(tracked)

    def matched_tokens(self, request_id: str, computed_tokens: int) -> int | None:
        """Returns how many tokens beyond ``computed_tokens`` can be loaded; None: not known yet."""
        self._answers.deliver()
        tracked = self._tracked.get(request_id)
        return 0 if tracked is None else self._loads.matched_tokens(tracked, computed_tokens)

    def allocated(self, request_id: str, block_ids: Sequence[int], loaded_tokens: int) -> None:
        """Have ``loaded_tokens``, which were offered, loaded into a request's blocks."""
        if tracked := self._tracked.get(request_id):
            self._loads.allocated(tracked, block_ids, loaded_tokens)

    def plan(
        self, plan: StepPlan, scheduled: Mapping[str, int], preempted: Collection[str]
    ) -> None:
        """Adds to ``plan`` what the ranks are to copy before, beside and after a step.

        ``scheduled`` has the tokens that each request is to compute in it. A step without any
        waits a millisecond for the store's answers.
        """
        plan.idle = not scheduled
        if plan.idle:
            self._answers.wait(IDLE_WAIT)
        self._answers.deliver()
        for request_id in preempted:
            if tracked := self._tracked.get(request_id):
                self._saves.stop(tracked)
        plan.loads += self._loads.take_planned()
        for request_id, token_count in scheduled.items():
            if tracked := self._tracked.get(request_id):
                request = tracked.request
                ready = min(request.num_computed_tokens + token_count, request.num_tokens)
                blocks = partial(self._blocks_of, request_id)
                plan.saves += self._saves.scheduled(tracked, ready, blocks)
        copies, let_go = self._saves.plan_held()
        plan.saves += copies
        plan.let_go |= let_go

    def reported(self, report: WorkerReport, invalid_blocks: Collection[int]) -> None:
        """Takes in what ranks ended, and the blocks that were computed on and not loaded."""
        self._answers.deliver()
        if invalid_blocks and not self._settings.load_async:
            for tracked in [*self._tracked.values(), *self._saves.held.values()]:
                blocks = tracked.held or self._blocks_of(tracked.request.request_id)
                if not set(invalid_blocks).isdisjoint(blocks):
                    self._saves.drop(tracked)
        self._jobs.report(report)

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Ends a request; returns whether its blocks are still to be read."""
        self._answers.deliver()
        tracked = self._tracked.pop(request_id, None)
        if tracked is None:
            return False
        if tracked.lookup is not None:
            tracked.lookup.drop()
        request = tracked.request
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        return self._saves.finished(tracked, min(computed, request.num_tokens), block_ids)

    def forget(self) -> bool:
        """Uses nothing that was looked up, and save nothing that was computed, until now.

        Requests that came before load nothing any more: their keys name what was there then.
        Returns whether that is all: not while loads are under way, which cannot be called back.
        """
        for tracked in [*self._tracked.values(), *self._saves.held.values()]:
            self._saves.drop(tracked)
            tracked.may_load = False
            if tracked.lookup is not None:
                tracked.lookup.drop()
                tracked.lookup = None
        return not self._loads.open_count

    def close(self) -> None:
        """Gives everything back that no rank reads or writes."""
        self.forget()
        self._answers.close()
