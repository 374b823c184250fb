"""Loads: from a lookup's answer until the store's pages are in the request's blocks."""

from collections import Counter
from collections.abc import Sequence
from functools import partial

from kvstore_client import Match
from kvstore_client.engines.counters import count_loaded
from kvstore_vllm.engine.connector_settings import PlannerSettings
from kvstore_vllm.scheduler.prefix_lookups import PrefixLookups
from kvstore_vllm.scheduler.step_operations import ReleasePages, StepOperations
from kvstore_vllm.scheduler.tracked_requests import Tracked
from kvstore_vllm.scheduler.transfer_jobs import Jobs
from kvstore_vllm.step_plan import BlockTransfer, runs_between


class LoadPath:
    """Offers matched tokens to vLLM, and plans the copies of hits into requests' blocks.

    A match is held until every rank ended the copy, or until the request no longer needs it. One
    thread uses it.
    """

    def __init__(
        self,
        settings: PlannerSettings,
        lookups: PrefixLookups,
        operations: StepOperations,
        jobs: Jobs,
        counts: "Counter[str]",
    ) -> None:
        self._settings = settings
        self._lookups = lookups
        self._operations = operations
        self._jobs = jobs
        self._counts = counts
        self._planned: list[BlockTransfer] = []
        self._wrong_blocks: set[int] = set()
        # The number of loads that not every rank has ended.
        self.open_count = 0

    def matched_tokens(self, tracked: Tracked, computed_tokens: int) -> int | None:
        """Returns the number of loadable tokens beyond the computed ones; None if unknown yet.

        Waits as :meth:`PrefixLookups.find` does.
        """
        if not tracked.may_load:
            return 0
        lookup = self._lookups.find(tracked)
        if lookup is None:
            return None
        lookup.computed_tokens = computed_tokens
        tokens = lookup.page_count * self._settings.page_tokens
        if not self._settings.load_async:
            # A load within a step must leave the step one token to compute.
            most = tracked.request.num_tokens - 1
            tokens = min(tokens, most - most % self._settings.page_tokens)
        return max(0, tokens - computed_tokens)

    def allocated(self, tracked: Tracked, block_ids: Sequence[int], loaded_tokens: int) -> None:
        """Plans the load of the offered tokens into blocks, or releases the match."""
        lookup = self._lookups.take(tracked)
        if lookup is None:
            return
        first = lookup.computed_tokens // self._settings.page_tokens
        end = first + loaded_tokens // self._settings.page_tokens
        if lookup.match is None or first == end:
            lookup.drop()
            return
        runs = runs_between(lookup.match.pages.dated_runs, first, end)
        tracked.load_tiers = Counter(lookup.match.page_tiers[first:end])
        done = partial(self._loaded, tracked, lookup.match, tracked.load_tiers, block_ids[first:])
        request_id = tracked.request.request_id
        self._planned.append(self._jobs.begin(request_id, block_ids[first:end], runs, done))
        tracked.open_loads += 1
        self.open_count += 1

    def take_planned(self) -> list[BlockTransfer]:
        """Returns the loads that the ranks begin in this step."""
        planned, self._planned = self._planned, []
        return planned

    def take_wrong_blocks(self) -> set[int]:
        """Returns the blocks of loads that failed since the last call, and those after them."""
        wrong, self._wrong_blocks = self._wrong_blocks, set()
        return wrong

    def _loaded(
        self,
        tracked: Tracked,
        match: Match,
        tiers: "Counter[int]",
        block_ids: Sequence[int],
        ok: bool,  # noqa: FBT001
    ) -> None:
        self._operations.add(ReleasePages(tracked.key, match))
        tracked.open_loads -= 1
        self.open_count -= 1
        if ok:
            count_loaded(self._counts, tiers, self._settings.page_tokens)
        else:
            # The tokens are computed after one failure, because retries might never end.
            tracked.may_load = False
            self._wrong_blocks.update(block_ids)
            self._counts["loads_failed"] += 1
