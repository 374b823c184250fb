"""The connector's part in vLLM's scheduler: the client of the store, and the planner."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

from kvstore_client.engines.canonical import mixed_salt
from kvstore_client.engines.store_access import StoreAccess
from kvstore_vllm.blocks.engine_layout import layout_of
from kvstore_vllm.engine.connector_settings import ConnectorSettings, PlannerSettings
from kvstore_vllm.engine.engine_facts import EngineFacts
from kvstore_vllm.engine.reuse_hints import ReuseHints
from kvstore_vllm.engine.store_access import ENGINES_HERE, lease_name
from kvstore_vllm.identity.adapters import AdapterDigests
from kvstore_vllm.identity.config_factors import adapter_facts
from kvstore_vllm.identity.model import engine_salt, model_identity
from kvstore_vllm.identity.request_key import RequestKey
from kvstore_vllm.scheduler.engine_speed import EngineSpeed
from kvstore_vllm.scheduler.prefetches import Prefetches
from kvstore_vllm.scheduler.store_attachment import StoreAttachment
from kvstore_vllm.scheduler.store_threads import ThreadedAnswers
from kvstore_vllm.scheduler.store_work import StoreWork
from kvstore_vllm.scheduler.transfer_planner import TransferPlanner
from kvstore_vllm.step_plan import StepPlan, WorkerReport

_logger = logging.getLogger(__name__)

# A client has as many lanes.
THREADS: Final = 4
SALT_BYTES: Final = 16


def _no_blocks(request_id: str) -> Sequence[int]:
    del request_id
    return ()


class SchedulerRole:
    """The owner of the client. The scheduler's thread uses it.

    ``events`` makes events of the store's pages.
    """

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401  # a VllmConfig
        settings: ConnectorSettings,
        facts: EngineFacts,
        events: Any,  # noqa: ANN401  # a StoreEvents
    ) -> None:
        self.events = events
        self._facts = facts
        self._settings = settings
        device_type = vllm_config.device_config.device_type
        self._load_async = settings.loads_beside_steps(device_type)
        # Set once the scheduler is complete.
        self.blocks_of: Callable[[str], Sequence[int]] = _no_blocks
        # Sent to the ranks, because their configuration changes when the model is loaded.
        layout = layout_of(facts.layout)
        self._identity = identity = model_identity(vllm_config, settings, layout=layout)
        access = StoreAccess(
            settings.runtime_dir,
            identity,
            layout,
            name=lease_name(identity.display_name, facts.engine_id),
            call_timeout=settings.lookup_timeout,
            device=ENGINES_HERE.device_of(facts.engine_id),
        )
        self._base_salt = engine_salt(settings)
        self._weight_changes = 0
        self._adapters = AdapterDigests(adapter_facts(vllm_config.lora_config))
        counts: Counter[str] = Counter()
        self._hints = ReuseHints(counts)
        self._attachment = StoreAttachment(access, facts.engine_id, facts.rank_count, counts)
        self._speed = EngineSpeed(access.state_speed)
        half_settings = PlannerSettings(
            page_tokens=facts.page_tokens,
            rank_count=facts.rank_count,
            lookup_timeout=settings.lookup_timeout,
            scheduling_wait=settings.scheduling_wait,
            load_async=self._load_async,
            save_output=settings.save_output,
        )
        work = StoreWork(access, facts.page_tokens, settings.lookup_timeout)
        self.planner = TransferPlanner(
            half_settings,
            work,
            ThreadedAnswers(THREADS),
            usable=self._attachment.usable,
            joining=self._attachment.is_joining,
            blocks_of=self._blocks_of,
            news=events,
            counts=counts,
        )
        self.planner.prefetch_with(
            Prefetches(
                work,
                ThreadedAnswers(1),
                counts,
                lookup_threads=THREADS,
                offered=self._attachment.prefetches,
            )
        )
        events.check_with(work.cached_pages, lambda: access.usable)

    def arrived(self, request: Any) -> None:  # noqa: ANN401  # a Request
        """Begins a request's lookup."""
        self._speed.arrived(request)
        key = RequestKey.of(request, base_salt=self._base_salt, adapters=self._adapters)
        self.planner.arrived(request, key, self._hints.read(request))

    def matched_tokens(self, request_id: str, computed_tokens: int) -> tuple[int | None, bool]:
        """Returns the number of loadable tokens, and whether they load beside steps."""
        if self._weight_changes and computed_tokens:
            # vLLM's own prefix cache may have them from before the change.
            self.planner.save_nothing(request_id)
        count = self.planner.matched_tokens(request_id, computed_tokens)
        return count, bool(count) and self._load_async

    def plan(
        self,
        scheduled: Mapping[str, int],
        preempted: Collection[str],
        finished: Collection[str],
    ) -> StepPlan:
        """Returns the plan of a step. ``finished`` requests ended since the last one."""
        plan = StepPlan(self._facts.engine_id, load_async=self._load_async)
        if self._attachment.tells_ranks:
            plan.lease, plan.identity = self._attachment.share(), self._identity
        plan.weight_changes = self._weight_changes
        self._attachment.begin_step(idle=not scheduled)
        self.planner.plan(plan, scheduled, preempted)
        loads_within = bool(plan.loads) and not plan.load_async
        self._speed.scheduled(scheduled, finished, measured=not loads_within)
        return plan

    def reported(self, report: WorkerReport, invalid_blocks: Collection[int]) -> set[int]:
        """Takes the ranks' results of a step, and which ranks joined the lease.

        Returns the blocks that vLLM's prefix cache must not have.
        """
        self._speed.output_arrived()
        self._attachment.joined(report.joined)
        if report.disagrees:
            self._attachment.turn_off("a rank's blocks lie otherwise")
        if report.weight_changes > self._weight_changes:
            self._weight_changes = report.weight_changes
            _logger.warning("weights_changed", extra={"change_count": self._weight_changes})
            self.reset()
        return self.planner.reported(report, invalid_blocks)

    def reset(self) -> bool:
        """Continues in new, empty namespaces; returns False while loads are under way."""
        self._base_salt = mixed_salt(base=engine_salt(self._settings), reset=os.urandom(SALT_BYTES))
        self.events.clear()
        return self.planner.forget()

    def close(self) -> None:
        """Releases everything, including the lease."""
        self.events.close()
        self.planner.close()
        self._attachment.close()

    def _blocks_of(self, request_id: str) -> Sequence[int]:
        return self.blocks_of(request_id)
