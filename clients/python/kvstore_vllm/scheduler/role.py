"""The scheduler half with its store: what a connector in vLLM's scheduler has."""

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from kvstore_vllm.blocks.page_layout import layout_of
from kvstore_vllm.counters import note_attached
from kvstore_vllm.engine.facts import EngineFacts
from kvstore_vllm.engine.settings import ConnectorSettings, PlannerSettings
from kvstore_vllm.engine.store_access import ENGINES_HERE, StoreAccess, lease_name
from kvstore_vllm.identity.adapters import AdapterDigests
from kvstore_vllm.identity.canonical import mixed_salt
from kvstore_vllm.identity.config_factors import adapter_facts
from kvstore_vllm.identity.model import engine_salt, model_identity
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.answers import ThreadedAnswers
from kvstore_vllm.scheduler.joining import Joining
from kvstore_vllm.scheduler.planner import TransferPlanner
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.transfer import StepPlan, WorkerReport

_logger = logging.getLogger(__name__)

# As many as a client has lanes for.
THREADS: Final = 4
SALT_BYTES: Final = 16
# Of a step that computes nothing, while requests wait for that; seconds.
ATTACH_WAIT: Final = 0.001


def _no_blocks(request_id: str) -> Sequence[int]:
    del request_id
    return ()


class SchedulerRole:
    """Owns the client. The scheduler's thread uses it.

    ``stored`` is told of a request, and its pages from and to, which are in the store now.
    """

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401  # a VllmConfig
        settings: ConnectorSettings,
        facts: EngineFacts,
        stored: Callable[[Any, int, int], None],
    ) -> None:
        self._facts = facts
        self._settings = settings
        # Not known before the scheduler is complete.
        self.blocks_of: Callable[[str], Sequence[int]] = _no_blocks
        # Ranks are told it: their configuration is another once the model is loaded.
        layout = layout_of(facts.layout)
        self._identity = identity = model_identity(vllm_config, settings, layout=layout)
        self._access = StoreAccess(
            settings.runtime_dir,
            identity,
            layout,
            name=lease_name(identity.display_name, facts.engine_id),
            call_timeout=settings.lookup_timeout,
        )
        self._base_salt = engine_salt(settings)
        self._adapters = AdapterDigests(adapter_facts(vllm_config.lora_config))
        # Ranks of other processes join the lease; of this one they use the client itself.
        self._joining = Joining(0 if ENGINES_HERE.has_rank(facts.engine_id) else facts.rank_count)
        self._disagrees = False
        self._was_usable: bool | None = None
        ENGINES_HERE.put(facts.engine_id, self._access)
        half_settings = PlannerSettings(
            page_tokens=facts.page_tokens,
            rank_count=facts.rank_count,
            lookup_timeout=settings.lookup_timeout,
            load_async=settings.load_async,
            save_output=settings.save_output,
        )
        self.planner = TransferPlanner(
            half_settings,
            StoreWork(self._access, facts.page_tokens, settings.lookup_timeout),
            ThreadedAnswers(THREADS),
            usable=self._usable,
            joining=self._is_joining,
            blocks_of=self._blocks_of,
            stored=stored,
        )

    def arrived(self, request: Any) -> None:  # noqa: ANN401  # a Request
        """Begins to look a request up."""
        key = RequestKey.of(request, base_salt=self._base_salt, adapters=self._adapters)
        self.planner.arrived(request, key)

    def matched_tokens(self, request_id: str, computed_tokens: int) -> tuple[int | None, bool]:
        """Returns what vLLM asks for: tokens, and whether they are loaded beside steps."""
        count = self.planner.matched_tokens(request_id, computed_tokens)
        return count, bool(count) and self._settings.load_async

    def plan(self, scheduled: Mapping[str, int], preempted: Collection[str]) -> StepPlan:
        """Returns the plan of a step."""
        plan = StepPlan(self._facts.engine_id, load_async=self._settings.load_async)
        if self._joining.tells_ranks:
            plan.lease, plan.identity = self._access.share_lease(), self._identity
            self._joining.told(plan.lease)
        self._say_whether_usable()
        if not scheduled and self._is_joining():
            self._access.memory.wait_open(ATTACH_WAIT)
        self.planner.plan(plan, scheduled, preempted)
        return plan

    def reported(self, report: WorkerReport, invalid_blocks: Collection[int]) -> None:
        """Takes in what the ranks ended, and that they reach the store."""
        self._joining.came(report.joined)
        if report.disagrees and not self._disagrees:
            self._disagrees = True
            _logger.error("kvstore_turned_off", extra={"reason": "a rank's blocks lie otherwise"})
        self.planner.reported(report, invalid_blocks)

    def reset(self) -> bool:
        """Goes on in namespaces that nothing was stored in yet; False while loads are under way."""
        self._base_salt = mixed_salt(base=engine_salt(self._settings), reset=os.urandom(SALT_BYTES))
        return self.planner.forget()

    def close(self) -> None:
        """Gives everything back, and the lease."""
        self.planner.close()
        self._access.close()
        ENGINES_HERE.remove(self._facts.engine_id)

    def _blocks_of(self, request_id: str) -> Sequence[int]:
        return self.blocks_of(request_id)

    def _usable(self) -> bool:
        """Returns whether the store answers and every rank reaches its memory."""
        if self._disagrees or not self._access.usable:
            return False
        return self._joining.complete(self._lease)

    def _is_joining(self) -> bool:
        """Returns whether the store is about to be used: it or ranks are still on their way."""
        if self._disagrees:
            return False
        # In this order: a store that is attached to in between answers.
        tried = self._access.tried
        return self._joining.waits(answers=self._access.usable, tried=tried, lease=self._lease)

    @property
    def _lease(self) -> bytes | None:
        """What the ranks are to join; None where they share the client, or there is none."""
        return self._access.share_lease() if self._joining.tells_ranks else None

    def _say_whether_usable(self) -> None:
        """Have it in the log when the store comes to be used, and when it is not any more."""
        usable = self._usable()
        if usable == self._was_usable or self._is_joining():
            return
        self._was_usable = usable
        note_attached(self.planner.counts, attached=usable)
        facts = self._access.facts()
        if usable:
            _logger.info("kvstore_used", extra=facts)
        else:
            _logger.warning("kvstore_not_used", extra=facts)
