"""The connector's half at a rank, with the store's memory."""

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

import torch

from kvstore_client import Namespace
from kvstore_vllm.blocks.block_copier import BlockCopier, planes_of
from kvstore_vllm.blocks.descriptor_copier import DescriptorCopier, Submit
from kvstore_vllm.blocks.engine_layout import layout_of
from kvstore_vllm.engine.connector_settings import ConnectorSettings
from kvstore_vllm.engine.engine_facts import EngineFacts
from kvstore_vllm.rank.plan_executor import CUDA, Copier, PlanExecutor
from kvstore_vllm.rank.rank_memory import RankMemory, selected_gpu
from kvstore_vllm.rank.weight_changes import WeightChanges
from kvstore_vllm.step_plan import BlockTransfer, StepPlan, WorkerReport

_logger = logging.getLogger(__name__)


class RankRole:
    """Carries out plans at one rank. The rank's thread uses it.

    A transfer that was planned before the weights changed last fails: what it would load or
    save belongs to other weights than those of its namespace.
    """

    def __init__(
        self,
        vllm_config: Any,  # noqa: ANN401  # a VllmConfig
        settings: ConnectorSettings,
        facts: EngineFacts,
        submit: Submit,
        weights: WeightChanges | None = None,
    ) -> None:
        """Copies between a device's blocks and slots by ``submit``."""
        self._submit = submit
        self._vllm_config = vllm_config
        self._settings = settings
        self._facts = facts
        self._executor: PlanExecutor | None = None
        self._loads_early = False
        self._begun: StepPlan | None = None
        self._report = WorkerReport()
        self._none: Counter[str] = Counter()
        self._weights = weights or WeightChanges()
        # Loads that the executor has not ended, by request, with the changes that they know of.
        self._loading: dict[str, tuple[int, BlockTransfer]] = {}
        self._outdated: list[BlockTransfer] = []
        self._memory = RankMemory(
            settings.runtime_dir,
            facts.engine_id,
            settings.lookup_timeout,
            device=selected_gpu(vllm_config),
        )

    def register(self, kv_caches: Mapping[str, torch.Tensor]) -> None:
        """Stores the memory of the blocks; logs an error if its layout is not the scheduler's."""
        rank = self._vllm_config.parallel_config.rank % self._facts.tensor_parallel_size
        copier: Copier | None
        try:
            planes = planes_of(self._facts.pieces, kv_caches)
            if planes and planes[0].blocks.device.type == CUDA:
                copier = DescriptorCopier(planes, self._submit, rank)
            else:
                copier = BlockCopier(planes, rank)
        except (KeyError, ValueError) as error:
            _logger.error("kvstore_turned_off", extra={"reason": str(error)})  # noqa: TRY400
            self._report.disagrees = True
            # Transfers planned before the scheduler knows that fail, and are reported as usual.
            copier = None
        self._executor = PlanExecutor(copier, fault_fraction=self._settings.fault_load_fraction)
        # A GPU's loads follow the step's work in the queue of the device. On a CPU the step would
        # have ended by then, so they begin first, unless the step zeroes their blocks later.
        on_cpu = copier is not None and copier.device.type == "cpu"
        self._loads_early = on_cpu and not self._facts.zeroes_blocks

    def prepare(self, plan: StepPlan) -> None:
        """Waits for saves of blocks that vLLM took back, and begins early loads.

        Early loads run beside the step's forward, and may begin before it.
        """
        if self._executor is not None:
            self._executor.wait_for_saves(plan.preempted)
        if self._loads_early and plan.loads and plan.load_async:
            self.load(plan)
            self._begun = plan

    def load(self, plan: StepPlan) -> None:
        """Begins the plan's loads, unless :meth:`prepare` did."""
        begun, self._begun = self._begun, None
        if self._executor is not None and plan is not begun:
            self._executor.load(plan, self._mapped(plan))
            if plan.load_async:
                self._loading |= {
                    each.request_id: (plan.weight_changes, each) for each in plan.loads
                }

    def save(self, plan: StepPlan) -> None:
        """Carries out the plan's saves."""
        if self._executor is not None:
            self._executor.save(plan, self._mapped(plan))

    def take_finished(self) -> tuple[set[str] | None, set[str] | None]:
        """Returns the requests that are let go, and those whose loads ended."""
        if self._executor is None:
            return None, None
        let_go, received = self._executor.take_finished()
        for request_id in received:
            loading = self._loading.pop(request_id, None)
            if loading is not None and loading[0] != self._weights.count:
                self._outdated.append(loading[1])
        return let_go, received

    def take_failed_blocks(self) -> set[int]:
        """Returns the blocks whose loads failed."""
        if self._executor is None:
            return set()
        failed = self._executor.take_failed_blocks()
        return failed.union(*(each.block_ids for each in self._outdated))

    def take_report(self) -> WorkerReport:
        """Returns the results, whether this rank reaches the store, and changes of its weights."""
        report, self._report = self._report, WorkerReport()
        if self._executor is not None:
            report.add(self._executor.take_report())
        report.failed.update(each.job for each in self._outdated)
        self._outdated.clear()
        report.weight_changes = self._weights.count
        report.joined.update(self._memory.take_joined())
        return report

    @property
    def counts(self) -> "Counter[str]":
        """The counts and times of copies, until the caller takes them out."""
        return self._none if self._executor is None else self._executor.counts

    def close(self) -> None:
        """Waits for transfers under way, and leaves the lease."""
        if self._executor is not None:
            self._executor.close()
        self._memory.close()

    def _mapped(self, plan: StepPlan) -> Namespace | None:
        """Returns the store's memory as far as it is mapped here, and may serve this plan."""
        self._memory.follow(
            plan.lease, plan.identity, lambda: layout_of(self._facts.layout), idle=plan.idle
        )
        return self._memory.mapped if plan.weight_changes == self._weights.count else None
