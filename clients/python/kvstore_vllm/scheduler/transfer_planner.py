"""The connector's half in vLLM's scheduler: plans lookups, loads and saves of requests."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from kvstore_client import ReuseHint
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.load_path import LoadPath
from kvstore_vllm.scheduler.prefetches import Prefetches
from kvstore_vllm.scheduler.prefix_lookups import PrefixLookups
from kvstore_vllm.scheduler.save_path import SavePath
from kvstore_vllm.scheduler.step_operations import StepOperations
from kvstore_vllm.scheduler.store_news import NoNews, StoreNews
from kvstore_vllm.scheduler.store_threads import Answers
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.scheduler.tracked_requests import EngineRequest, Tracked
from kvstore_vllm.scheduler.transfer_jobs import Jobs
from kvstore_vllm.step_plan import StepPlan, WorkerReport

# Seconds that a step waits if it computes nothing because all requests wait for the store.
IDLE_WAIT = 0.001


class TransferPlanner:
    """Plans the transfers of requests, from their arrival to their end.

    Threads call the store, and each call here first delivers their answers. Requests save and
    release in one call a step for all of them. The only waits for answers are short:
    :meth:`matched_tokens` and :meth:`plan` name their bounds. Pins and slots of a request are
    released as soon as no rank reads or writes them, however the request ends. The planner uses
    none of vLLM's own types. Only the scheduler's thread uses it.

    - ``usable`` returns whether the store answers and every rank reaches it. If not, each
      lookup is a miss at once.
    - ``joining`` returns whether ranks are about to reach the store. Lookups wait then.
    - ``blocks_of`` returns a request's blocks.
    - ``news`` hears which pages of requests the store has.
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
        news: StoreNews | None = None,
        counts: "Counter[str] | None" = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.counts: Counter[str] = Counter() if counts is None else counts
        self._settings = settings
        self._answers = answers
        self._blocks_of = blocks_of
        self._tracked: dict[str, Tracked] = {}
        self._jobs = Jobs(settings.rank_count)
        news = NoNews() if news is None else news
        self._lookups = PrefixLookups(
            settings,
            work,
            answers,
            self.counts,
            usable=usable,
            joining=joining,
            news=news,
            clock=clock,
        )
        self._operations = operations = StepOperations(work, answers)
        self._loads = LoadPath(settings, self._lookups, operations, self._jobs, self.counts)
        self._saves = SavePath(
            settings, operations, self._jobs, self.counts, usable=usable, news=news
        )

    def prefetch_with(self, prefetches: Prefetches) -> None:
        """Loads pages ahead of lookups from now on. :meth:`close` closes ``prefetches``."""
        self._lookups.prefetches = prefetches

    @property
    def holds_blocks(self) -> bool:
        """True while blocks of ended requests are held. They come free soon."""
        return bool(self._saves.held)

    @property
    def is_idle(self) -> bool:
        """True while no rank has a transfer to end."""
        return not self._jobs

    @property
    def awaits_answers(self) -> bool:
        """True while answers or transfers are under way, which hold something until they end."""
        return bool(self._answers.under_way or self._jobs or self._operations.are_waiting)

    def arrived(
        self, request: EngineRequest, key: RequestKey | None, hint: ReuseHint | None = None
    ) -> None:
        """Begins a request's lookup. A request without a key is neither looked up nor saved.

        ``hint`` is for the pages that the request stores.
        """
        if key is None:
            return
        tracked = Tracked(request, key, hint, may_load=key.reads)
        self._tracked[request.request_id] = tracked
        if tracked.may_load:
            self._lookups.begin(tracked)

    def matched_tokens(self, request_id: str, computed_tokens: int) -> int | None:
        """Returns the number of loadable tokens beyond ``computed_tokens``; None if unknown yet.

        Waits for the store's answer once a request, and ``scheduling_wait`` at most in a step.
        """
        self._answers.deliver()
        tracked = self._tracked.get(request_id)
        return 0 if tracked is None else self._loads.matched_tokens(tracked, computed_tokens)

    def save_nothing(self, request_id: str) -> None:
        """Saves nothing more of a request, because its blocks may be wrong."""
        if tracked := self._tracked.get(request_id):
            self._saves.drop(tracked)

    def allocated(self, request_id: str, block_ids: Sequence[int], loaded_tokens: int) -> None:
        """Plans the load of ``loaded_tokens``, which were offered, into a request's blocks."""
        if tracked := self._tracked.get(request_id):
            self._loads.allocated(tracked, block_ids, loaded_tokens)

    def loaded_from(self, request_id: str, tier: int) -> int:
        """Returns how many tokens of a request's planned load only this tier of the store had."""
        tracked = self._tracked.get(request_id)
        return 0 if tracked is None else tracked.load_tiers[tier] * self._settings.page_tokens

    def plan(
        self, plan: StepPlan, scheduled: Mapping[str, int], preempted: Collection[str]
    ) -> None:
        """Adds to ``plan`` the copies that the ranks make before, beside and after a step.

        ``scheduled`` has the number of tokens that the step computes of each request. A step
        without any waits at most a millisecond for the store's answers.
        """
        plan.idle = not scheduled
        if plan.idle:
            self._answers.wait(IDLE_WAIT)
        self._answers.deliver()
        for request_id in preempted:
            if tracked := self._tracked.get(request_id):
                self._saves.stop(tracked)
        # Of ended requests too: their saves read blocks that were taken before the end.
        plan.preempted |= set(preempted)
        plan.loads += self._loads.take_planned()
        self._lookups.end_step()
        for request_id, token_count in scheduled.items():
            if tracked := self._tracked.get(request_id):
                request = tracked.request
                ready = min(request.num_computed_tokens + token_count, request.num_tokens)
                blocks = partial(self._blocks_of, request_id)
                plan.saves += self._saves.scheduled(tracked, ready, blocks)
        copies, let_go = self._saves.plan_held()
        plan.saves += copies
        plan.let_go |= let_go
        self._operations.send()

    def reported(self, report: WorkerReport, invalid_blocks: Collection[int]) -> set[int]:
        """Takes the ranks' results, and stops saving requests with blocks that failed to load.

        Returns the blocks that vLLM's prefix cache must not have: those whose load within a step
        failed, and those computed after them.
        """
        self._answers.deliver()
        wrong: set[int] = set()
        # Blocks are not in the prefix cache before a load beside steps ended.
        if invalid_blocks and not self._settings.load_async:
            # Before the copies of this step count as ended, so that none is inserted.
            for tracked in [*self._tracked.values(), *self._saves.held.values()]:
                blocks = tracked.held or self._blocks_of(tracked.request.request_id)
                invalid = (n for n, block in enumerate(blocks) if block in invalid_blocks)
                if (first := next(invalid, None)) is not None:
                    self._saves.drop(tracked)
                    wrong.update(blocks[first:])
        self._jobs.report(report)
        failed = self._loads.take_wrong_blocks()
        if not self._settings.load_async:
            wrong |= failed
        self._send_the_last()
        return wrong

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Ends a request; returns whether its blocks are still to be copied."""
        self._answers.deliver()
        tracked = self._tracked.pop(request_id, None)
        if tracked is None:
            return False
        self._lookups.drop(tracked)
        request = tracked.request
        computed = request.num_computed_tokens - request.num_in_flight_tokens
        ready = min(computed, request.num_tokens)
        holds = self._saves.finished(tracked, ready, block_ids)
        self._send_the_last()
        return holds

    def forget(self) -> bool:
        """Drops all earlier lookups, and saves nothing that was computed until now.

        Earlier requests load nothing more, because their keys are of the old namespaces. Returns
        False while loads are under way, which cannot be cancelled.
        """
        for tracked in [*self._tracked.values(), *self._saves.held.values()]:
            self._saves.drop(tracked)
            tracked.may_load = False
            self._lookups.drop(tracked)
        self._operations.send()
        return not self._loads.open_count

    def close(self) -> None:
        """Releases all holds that no rank reads or writes."""
        self.forget()
        if self._lookups.prefetches is not None:
            self._lookups.prefetches.close()
        self._operations.close()

    def _send_the_last(self) -> None:
        """Sends what is left to the store if no request is: another step may never come."""
        if not self._tracked:
            self._operations.send()
